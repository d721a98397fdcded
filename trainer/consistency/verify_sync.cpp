// Hashes travel and not tensors: eight bytes a rank while all is well, eight a tensor otherwise.
#include "trainer/consistency/verify_sync.h"

#define XXH_INLINE_ALL  // Header-only: the library need not be there at run time.
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "trainer/consistency/sync_verdict.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::trainer {
namespace {

std::uint64_t hash_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const torch::Tensor on_host = tensor.detach().cpu();
  // The order in memory is the same on all ranks, so dense memory is read as it lies.
  const torch::Tensor dense =
      on_host.is_non_overlapping_and_dense() ? on_host : on_host.contiguous();
  return XXH3_64bits(dense.data_ptr(), dense.nbytes());
}

// [rank][tensor]
std::vector<std::vector<std::uint64_t>> gather(worker::Communicator& communicator,
                                               const std::vector<std::uint64_t>& own,
                                               torch::Device device) {
  torch::Tensor hashes = torch::empty({static_cast<std::int64_t>(own.size())}, torch::kInt64);
  std::memcpy(hashes.data_ptr(), own.data(), own.size() * sizeof(own[0]));
  const torch::Tensor all =
      worker::result_on_host(communicator, worker::all_gather(communicator, hashes.to(device)));
  std::vector<std::vector<std::uint64_t>> rows;
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    const auto* row = all.data_ptr<std::int64_t>() + rank * all.size(1);
    rows.emplace_back(row, row + all.size(1));
  }
  return rows;
}

}  // namespace

bool is_running_statistic(const std::string& name) {
  return name.ends_with("running_mean") || name.ends_with("running_var");
}

ComparedTensors tensors_to_compare(const torch::nn::Module& model, const Sgd& optimizer,
                                   const ModelAverage* average, bool running_statistics) {
  const auto left_out = [&](const std::string& name) {
    return !running_statistics && is_running_statistic(name);
  };
  ComparedTensors tensors;
  for (const auto& item : model.named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) {
    if (!left_out(item.key())) tensors.emplace_back(item.key(), item.value());
  }
  std::map<std::string, torch::Tensor> momenta;
  for (const auto& [name, buffer] : optimizer.momentum_buffers()) momenta[name] = buffer;
  for (const auto& item : model.named_parameters()) {
    tensors.emplace_back("momentum of " + item.key(), momenta[item.key()]);
  }
  if (average == nullptr) return tensors;
  for (const auto& [name, tensor] : average->tensors()) {
    if (!left_out(name)) tensors.emplace_back("average of " + name, tensor);
  }
  return tensors;
}

void verify_sync(worker::Communicator& communicator, const ComparedTensors& tensors,
                 torch::Device device, std::int64_t step) {
  std::vector<std::uint64_t> own;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    names.push_back(name);
    own.push_back(hash_of(tensor));
  }
  if (own.empty()) return;
  // Mostly all agree, and then eight bytes a rank are enough.
  const std::uint64_t all = XXH3_64bits(own.data(), own.size() * sizeof(own[0]));
  if (judge_ranks(gather(communicator, {all}, device)).odd.empty()) return;
  const auto difference =
      describe_verdict(judge_ranks(gather(communicator, own, device)), names, step);
  if (difference) throw TrainingError(*difference);
}

bool has_running_statistics(const torch::nn::Module& model) {
  const auto buffers = model.named_buffers();
  return std::any_of(buffers.begin(), buffers.end(),
                     [](const auto& item) { return is_running_statistic(item.key()); });
}

}  // namespace ddprun::trainer
