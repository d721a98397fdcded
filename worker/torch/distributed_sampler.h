// Which samples each rank reads in an epoch: the same indices, bit for bit, as Python's
// torch.utils.data.DistributedSampler of the same torch version (source of the rule:
// torch/utils/data/distributed.py). LibTorch's own DistributedRandomSampler draws others.
//
//   epoch's order    5 0 3 1 6 2 4         length 7, 3 replicas: 3 samples each
//   padded           5 0 3 1 6 2 4 5 0     (drop_last: 5 0 3 1 6 2, 2 each)
//   rank 0           5     1     4         rank, rank + replicas, ...
#pragma once

#include <cstdint>
#include <vector>

namespace ddprun::worker {

struct DistributedSamplerOptions {
  std::int64_t length = 0;    // Samples in the data set.
  std::int64_t replicas = 1;  // Ranks, or virtual shards.
  std::int64_t rank = 0;
  std::int64_t seed = 0;  // Equal on all ranks.
  bool shuffle = true;
  bool drop_last = false;  // True: drop the uneven rest instead of repeating the first samples.
};

class DistributedSampler {
 public:
  // Throws std::invalid_argument when rank, replicas or length contradict each other.
  explicit DistributedSampler(const DistributedSamplerOptions& options);

  // Samples per rank, equal on all ranks.
  std::int64_t size() const { return size_; }

  // This rank's indices in the order of the epoch; the same for every call with the same epoch.
  std::vector<std::int64_t> indices(std::int64_t epoch) const;

  // The epoch's order before it is divided: a permutation of 0 .. length-1.
  std::vector<std::int64_t> order(std::int64_t epoch) const;

 private:
  DistributedSamplerOptions options_;
  std::int64_t size_ = 0;
};

// For evaluation: rank, rank + replicas, ... below length. Every index is on exactly one rank, none
// is repeated, so sizes differ by at most one. Throws std::invalid_argument as above.
std::vector<std::int64_t> evaluation_indices(std::int64_t length, std::int64_t replicas,
                                             std::int64_t rank);

}  // namespace ddprun::worker
