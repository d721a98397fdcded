// The order comes from at::randperm with a generator of its own: the numbers that Python draws.
#include "worker/torch/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>

#include <numeric>
#include <stdexcept>
#include <string>

#include "worker/torch/libtorch.h"

namespace ddprun::worker {
namespace {

void check(std::int64_t length, std::int64_t replicas, std::int64_t rank) {
  if (length >= 0 && replicas >= 1 && rank >= 0 && rank < replicas) return;
  throw std::invalid_argument("sampler: length " + std::to_string(length) + ", replicas " +
                              std::to_string(replicas) + ", rank " + std::to_string(rank) +
                              "; expected length >= 0, replicas >= 1, 0 <= rank < replicas");
}

}  // namespace

DistributedSampler::DistributedSampler(const DistributedSamplerOptions& options)
    : options_(options) {
  check(options.length, options.replicas, options.rank);
  size_ = options.length / options.replicas;
  if (!options.drop_last && options.length % options.replicas != 0) ++size_;
}

std::vector<std::int64_t> DistributedSampler::order(std::int64_t epoch) const {
  std::vector<std::int64_t> order(static_cast<std::size_t>(options_.length));
  if (!options_.shuffle) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  // Unsigned, so that the sum of any seed and epoch wraps; a negative seed means its two's
  // complement, as in Python.
  const auto seed = static_cast<std::uint64_t>(options_.seed) + static_cast<std::uint64_t>(epoch);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor permutation =
      at::randperm(options_.length, generator, at::TensorOptions().dtype(at::kLong));
  const auto* const first = permutation.data_ptr<std::int64_t>();
  order.assign(first, first + options_.length);
  return order;
}

std::vector<std::int64_t> DistributedSampler::indices(std::int64_t epoch) const {
  if (size_ == 0) return {};
  const std::vector<std::int64_t> all = order(epoch);
  std::vector<std::int64_t> mine;
  mine.reserve(static_cast<std::size_t>(size_));
  for (std::int64_t i = 0; i < size_; ++i) {
    // Positions beyond the end repeat the order from its start, several times if need be.
    const std::int64_t position = options_.rank + i * options_.replicas;
    mine.push_back(all[static_cast<std::size_t>(position % options_.length)]);
  }
  return mine;
}

std::vector<std::int64_t> evaluation_indices(std::int64_t length, std::int64_t replicas,
                                             std::int64_t rank) {
  check(length, replicas, rank);
  std::vector<std::int64_t> mine;
  for (std::int64_t i = rank; i < length; i += replicas) mine.push_back(i);
  return mine;
}

}  // namespace ddprun::worker
