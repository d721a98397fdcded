// Three gathers: how many rows each rank has, which, and their values. A gather takes as much of
// every rank, so those with fewer rows send what nobody reads.
#include "worker/torch/sparse_gradients.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <vector>

#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {
namespace {

struct Rows {
  at::Tensor which;   // [rows]
  at::Tensor values;  // [rows, ...]
};

Rows rows_of(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (!gradient.defined()) {
    return {at::empty({0}, at::kLong), at::empty_like(parameter.detach().narrow(0, 0, 0))};
  }
  const at::Tensor once = gradient.coalesce();
  return {once.indices().select(0, 0), once.values()};
}

// By rank; `counts[r]` rows of rank r.
std::vector<at::Tensor> gather_padded(Communicator& communicator, const at::Tensor& rows,
                                      const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes.front() = *std::max_element(counts.begin(), counts.end());
  const at::Tensor sent = at::zeros(sizes, rows.options());
  sent.narrow(0, 0, rows.size(0)).copy_(rows);
  const at::Tensor all = all_gather(communicator, sent);
  std::vector<at::Tensor> gathered;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    gathered.push_back(all[static_cast<std::int64_t>(rank)].narrow(0, 0, counts[rank]));
  }
  return gathered;
}

// 16 bits are added up in 32, as by the communicator's own sums.
at::ScalarType type_of_sums(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

// Rank by rank, in each of which a row is once: another order would be another rounding.
at::Tensor sum_of(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& places,
                  std::int64_t rows) {
  std::vector<std::int64_t> sizes = values.front().sizes().vec();
  sizes.front() = rows;
  const at::ScalarType type = type_of_sums(values.front().scalar_type());
  at::Tensor sum = at::zeros(sizes, values.front().options().dtype(type));
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    sum.index_add_(0, places[rank], values[rank].to(type));
  }
  return sum;
}

}  // namespace

std::unordered_set<const c10::TensorImpl*> parameters_with_sparse_gradients(
    const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> found;
  for (const auto& part : module.modules()) {
    if (const auto* const one = dynamic_cast<const torch::nn::EmbeddingImpl*>(part.get())) {
      if (one->options.sparse()) found.insert(one->weight.unsafeGetTensorImpl());
    }
    if (const auto* const bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(part.get())) {
      if (bag->options.sparse()) found.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  return found;
}

at::Tensor all_reduce_rows(Communicator& communicator, const at::Tensor& gradient,
                           const at::Tensor& parameter, ReduceOp op) {
  const Rows own = rows_of(gradient, parameter);
  const at::Tensor all_counts =
      all_gather(communicator, at::tensor({own.which.numel()}, at::kLong));
  const auto* const first = all_counts.const_data_ptr<std::int64_t>();
  const std::vector<std::int64_t> counts(first, first + all_counts.numel());

  const std::vector<at::Tensor> all_which = gather_padded(communicator, own.which, counts);
  const bool complex = own.values.is_complex();  // Travels as two real numbers.
  const at::Tensor values = complex ? at::view_as_real(own.values) : own.values;
  const std::vector<at::Tensor> all_values = gather_padded(communicator, values, counts);

  const auto [which, places, unused] =
      at::_unique2(at::cat(all_which), /*sorted=*/true, /*return_inverse=*/true);
  at::Tensor sum = sum_of(all_values, places.split_with_sizes(counts), which.numel());
  if (op == ReduceOp::Average) sum.div_(communicator.world_size());
  sum = sum.to(values.scalar_type());
  if (complex) sum = at::view_as_complex(sum);
  return at::_sparse_coo_tensor_unsafe(which.unsqueeze(0), sum, parameter.sizes())
      ._coalesced_(true);
}

}  // namespace ddprun::worker
