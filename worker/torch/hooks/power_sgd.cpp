// Two all-reduces a bucket: all that travels whole with all P, then all Q.
//
// P and Q lie in memory as their transposes, a row for each of their few columns: with them BLAS
// takes a third of the time of products with columns (docs/measurements/training.md).
#include "worker/torch/hooks/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/linalg_qr.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {
namespace {

// All elements, in the order in which they lie in memory.
at::Tensor flat(const at::Tensor& values) {
  return at::as_strided(values, {values.numel()}, {1}, values.storage_offset());
}

// Its memory as rows of the outermost dimension: for a convolution one per output channel, in
// either layout. Nothing for what is no matrix.
std::optional<at::Tensor> as_matrix(const at::Tensor& values) {
  const bool fits = values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble;
  if (!fits || values.dim() < 2 || values.numel() == 0) return std::nullopt;
  const auto strides = values.strides();
  const auto outermost = std::max_element(strides.begin(), strides.end()) - strides.begin();
  return flat(values).view({values.size(outermost), -1});
}

// What the thin matrices of a gradient have together; nothing where it travels whole.
std::optional<std::int64_t> thin_elements(const std::optional<at::Tensor>& matrix,
                                          const PowerSgdOptions& options) {
  if (!matrix) return std::nullopt;
  const std::int64_t thin = (matrix->size(0) + matrix->size(1)) * options.rank;
  const bool pays =
      static_cast<double>(matrix->numel()) > static_cast<double>(thin) * options.min_compression;
  return pays ? std::optional(thin) : std::nullopt;
}

// Parts of flat memory, one after the other.
class Cutter {
 public:
  explicit Cutter(const at::Tensor& memory) : memory_(memory) {}

  at::Tensor next(std::int64_t count) {
    begin_ += count;
    return memory_.narrow(0, begin_ - count, count);
  }
  at::Tensor next(std::int64_t rows, std::int64_t columns) {
    return next(rows * columns).view({rows, columns});
  }

 private:
  at::Tensor memory_;
  std::int64_t begin_ = 0;
};

// After a gradient that was no number, which has made all of it that: the next step must not have
// it, too. `q` is the same on all ranks. The host of a GPU does not wait to learn of it.
void forget_if_no_number(at::Tensor& error, at::Tensor& q) {
  const at::Tensor no_number = at::isfinite(q).all().logical_not();
  if (no_number.is_cpu() && !no_number.item<bool>()) return;
  error.masked_fill_(no_number, 0);
  q.masked_fill_(no_number, 1);
}

}  // namespace

PowerSgdBytes power_sgd_bytes(const std::vector<at::Tensor>& parameters,
                              const PowerSgdOptions& options) {
  PowerSgdBytes bytes;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) continue;
    const auto thin = thin_elements(as_matrix(parameter.detach()), options);
    bytes.whole += static_cast<std::int64_t>(parameter.nbytes());
    bytes.travels +=
        thin.value_or(parameter.numel()) * static_cast<std::int64_t>(parameter.element_size());
  }
  return bytes;
}

PowerSgd::PowerSgd(PowerSgdOptions options) : options_(options) {
  if (options_.rank < 1) throw std::invalid_argument("PowerSgd: the rank must be at least 1");
  if (options_.start_step < 0) {
    throw std::invalid_argument("PowerSgd: the first step cannot be below 0");
  }
  if (!(options_.min_compression >= 1)) {
    throw std::invalid_argument("PowerSgd: the least compression must be at least 1");
  }
}

void PowerSgd::reduce(const GradientBucket& bucket, Communicator& communicator) {
  Parts parts = divide(bucket);
  if (parts.matrices.empty()) return all_reduce(communicator, bucket.values, bucket.op);
  const at::ScalarType type = bucket.values.scalar_type();
  const std::int64_t rank = options_.rank;
  std::int64_t first_count = 0, second_count = 0;
  for (const at::Tensor& whole : parts.whole) first_count += whole.numel();
  for (const Matrix& matrix : parts.matrices) {
    first_count += matrix.values.size(0) * rank;
    second_count += matrix.values.size(1) * rank;
  }
  const at::Tensor first = first_.get(bucket, first_count, type, communicator);
  const at::Tensor second = second_.get(bucket, second_count, type, communicator);

  // P = M Q.
  Cutter to_first(first);
  for (const at::Tensor& whole : parts.whole) to_first.next(whole.numel()).copy_(whole);
  for (const Matrix& matrix : parts.matrices) {
    matrix.state->error.add_(matrix.values);  // M, until the step's own error is known.
    at::Tensor p = to_first.next(rank, matrix.values.size(0));
    at::mm_out(p, matrix.state->q, matrix.state->error.t());
  }
  all_reduce(communicator, first, bucket.op);

  // Q = M' P.
  Cutter from_first(first), to_second(second);
  for (const at::Tensor& whole : parts.whole) whole.copy_(from_first.next(whole.numel()));
  std::vector<at::Tensor> orthogonal;
  for (const Matrix& matrix : parts.matrices) {
    const at::Tensor p = from_first.next(rank, matrix.values.size(0));
    orthogonal.push_back(std::get<0>(at::linalg_qr(p.t())).t().contiguous());
    at::Tensor q = to_second.next(rank, matrix.values.size(1));
    at::mm_out(q, orthogonal.back(), matrix.state->error);
  }
  all_reduce(communicator, second, ReduceOp::Average);

  // P Q', and what it leaves out.
  Cutter from_second(second);
  const double scale = bucket.op == ReduceOp::Sum ? communicator.world_size() : 1;
  for (std::size_t i = 0; i < parts.matrices.size(); ++i) {
    Matrix& matrix = parts.matrices[i];
    at::Tensor& q = matrix.state->q;
    q.copy_(from_second.next(rank, matrix.values.size(1)));
    matrix.values.addmm_(orthogonal[i].t(), q, /*beta=*/0, scale);
    matrix.state->error.addmm_(orthogonal[i].t(), q, /*beta=*/1, /*alpha=*/-1);
    forget_if_no_number(matrix.state->error, q);
  }
}

// What becomes a matrix depends on shapes and on how often a parameter was here: as on all ranks.
PowerSgd::Parts PowerSgd::divide(const GradientBucket& bucket) {
  Parts parts;
  for (const GradientBucket::Gradient& gradient : bucket.gradients) {
    const std::optional<at::Tensor> values = as_matrix(gradient.values);
    if (thin_elements(values, options_)) {
      State& state = states_[gradient.parameter];
      if (state.steps++ >= options_.start_step) {
        Matrix matrix{*values, &state};
        prepare(matrix, gradient.parameter);
        parts.matrices.push_back(std::move(matrix));
        continue;
      }
    }
    parts.whole.push_back(flat(gradient.values));
  }
  return parts;
}

void PowerSgd::prepare(Matrix& matrix, std::size_t parameter) const {
  State& state = *matrix.state;
  if (state.error.defined()) return;
  state.error = at::zeros_like(matrix.values);
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options_.seed + parameter);
  // Drawn on the host, so that it is the same on any device.
  state.q =
      at::randn({options_.rank, matrix.values.size(1)}, generator, matrix.values.scalar_type())
          .to(matrix.values.device());
}

std::string PowerSgd::description() const {
  return "PowerSgd of rank " + std::to_string(options_.rank) + " from step " +
         std::to_string(options_.start_step) + ", at least " +
         std::to_string(options_.min_compression) + " times smaller, seed " +
         std::to_string(options_.seed);
}

}  // namespace ddprun::worker
