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

// For a convolution that of the output channels, in either layout.
std::int64_t outermost_dimension(const at::Tensor& values) {
  const auto strides = values.strides();
  return std::max_element(strides.begin(), strides.end()) - strides.begin();
}

// Its memory as rows of the outermost dimension. Nothing for what is no matrix.
std::optional<at::Tensor> as_matrix(const at::Tensor& values) {
  const bool fits = values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble;
  if (!fits || values.dim() < 2 || values.numel() == 0) return std::nullopt;
  return flat(values).view({values.size(outermost_dimension(values)), -1});
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
  errors_are_shared_ = false;
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
    matrix.state->error_rows.add_(matrix.values);  // M, until the step's own error is known.
    at::Tensor p = to_first.next(rank, matrix.values.size(0));
    at::mm_out(p, matrix.state->q_rows, matrix.state->error_rows.t());
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
    at::mm_out(q, orthogonal.back(), matrix.state->error_rows);
  }
  all_reduce(communicator, second, ReduceOp::Average);

  // P Q', and what it leaves out.
  Cutter from_second(second);
  const double scale = bucket.op == ReduceOp::Sum ? communicator.world_size() : 1;
  for (std::size_t i = 0; i < parts.matrices.size(); ++i) {
    Matrix& matrix = parts.matrices[i];
    at::Tensor& q = matrix.state->q_rows;
    q.copy_(from_second.next(rank, matrix.values.size(1)));
    matrix.values.addmm_(orthogonal[i].t(), q, /*beta=*/0, scale);
    matrix.state->error_rows.addmm_(orthogonal[i].t(), q, /*beta=*/1, /*alpha=*/-1);
    forget_if_no_number(matrix.state->error_rows, q);
  }
}

// What becomes a matrix depends on shapes and on how often a parameter was here: as on all ranks.
PowerSgd::Parts PowerSgd::divide(const GradientBucket& bucket) {
  Parts parts;
  for (const GradientBucket::Gradient& gradient : bucket.gradients) {
    const std::optional<at::Tensor> values = as_matrix(gradient.values);
    if (thin_elements(values, options_)) {
      const auto [found, is_new] = states_.try_emplace(gradient.parameter);
      State& state = found->second;
      if (is_new) state.steps = steps_before_;
      if (state.steps++ >= options_.start_step) {
        prepare(state, gradient);
        parts.matrices.push_back({*values, &state});
        continue;
      }
    } else if (const auto found = states_.find(gradient.parameter); found != states_.end()) {
      // Of a run with fewer columns. What it has left travels at once.
      const at::Tensor& left = found->second.error;  // On the host, if it was restored.
      if (left.defined()) gradient.values.add_(left.to(gradient.values.device()));
      states_.erase(found);
    }
    parts.whole.push_back(flat(gradient.values));
  }
  return parts;
}

void PowerSgd::prepare(State& state, const GradientBucket::Gradient& gradient) const {
  if (state.error_rows.defined()) return;
  at::Tensor error = at::zeros_like(gradient.values);
  if (state.error.defined()) error.copy_(state.error);
  std::vector<std::int64_t> shape = gradient.values.sizes().vec();
  shape[static_cast<std::size_t>(outermost_dimension(gradient.values))] = options_.rank;
  at::Tensor q = at::empty_strided(shape, gradient.values.strides(), gradient.values.options());
  const at::Tensor q_rows = flat(q).view({options_.rank, -1});
  if (state.q.defined() && state.q.sizes() == q.sizes()) {
    q.copy_(state.q);
  } else {  // Drawn on the host, so that it is the same on any device.
    const auto generator =
        at::make_generator<at::CPUGeneratorImpl>(options_.seed + gradient.parameter);
    q_rows.copy_(at::randn(q_rows.sizes(), generator, gradient.values.scalar_type()));
  }
  state.error = error;
  state.q = q;
  state.error_rows = *as_matrix(error);
  state.q_rows = q_rows;
}

void PowerSgd::give_back() noexcept {
  first_.clear();
  second_.clear();
  taken_ = false;
}

void PowerSgd::share_errors(Communicator& communicator) {
  if (errors_are_shared_) return;
  for (auto& [parameter, state] : states_) {
    if (state.error_rows.defined()) all_reduce(communicator, state.error_rows, ReduceOp::Average);
  }
  errors_are_shared_ = true;
}

PowerSgdMemory PowerSgd::memory() const {
  PowerSgdMemory memory{.steps = steps_before_, .matrices = {}};
  for (const auto& [parameter, state] : states_) {
    memory.steps = std::max(memory.steps, state.steps);
    if (state.error.defined()) memory.matrices.push_back({parameter, state.error, state.q});
  }
  return memory;
}

void PowerSgd::restore(const PowerSgdMemory& memory) {
  states_.clear();
  steps_before_ = memory.steps;
  for (const PowerSgdMemory::Matrix& matrix : memory.matrices) {
    State& state = states_[matrix.parameter];
    state.steps = memory.steps;
    state.error = matrix.error.clone();
    state.q = matrix.q.clone();
  }
  errors_are_shared_ = true;
}

std::string PowerSgd::description() const {
  return "PowerSgd of rank " + std::to_string(options_.rank) + " from step " +
         std::to_string(options_.start_step) + ", at least " +
         std::to_string(options_.min_compression) + " times smaller, seed " +
         std::to_string(options_.seed);
}

}  // namespace ddprun::worker
