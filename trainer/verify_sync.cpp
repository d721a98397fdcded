// See verify_sync.h.
#include "trainer/verify_sync.h"

#define XXH_INLINE_ALL  // Header-only: the library need not be there at run time.
#include <xxhash.h>

#include <map>

#include "trainer/sync_verdict.h"
#include "trainer/training_job.h"
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
  const torch::Tensor all = worker::all_gather(communicator, hashes.to(device)).cpu();
  std::vector<std::vector<std::uint64_t>> rows;
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    const auto* row = all.data_ptr<std::int64_t>() + rank * all.size(1);
    rows.emplace_back(row, row + all.size(1));
  }
  return rows;
}

// What is the same on all ranks by the rules of training.
ComparedTensors compared_tensors(const TrainingJob& job) {
  ComparedTensors tensors;
  for (const auto& item : job.model->named_parameters())
    tensors.emplace_back(item.key(), item.value());
  for (const auto& item : job.model->named_buffers())
    tensors.emplace_back(item.key(), item.value());
  std::map<std::string, torch::Tensor> momenta;
  for (const auto& [name, buffer] : job.optimizer->momentum_buffers()) momenta[name] = buffer;
  for (const auto& item : job.model->named_parameters()) {
    tensors.emplace_back("momentum of " + item.key(), momenta[item.key()]);
  }
  if (!job.average) return tensors;
  for (const auto& [name, average] : job.average->parameters()) {
    tensors.emplace_back("average of " + name, average);
  }
  return tensors;
}

}  // namespace

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

void verify_sync(TrainingJob& job) {
  if (job.env.world_size == 1) return;
  if (!job.options.sync_batch_norm) job.parallel->synchronize_buffers();
  verify_sync(job.communicator(), compared_tensors(job), job.place.device, job.state.step);
}

}  // namespace ddprun::trainer
