// The sum over all shards where ranks have several sums each, or where the communicator adds in an
// order of its own: every rank adds up one slice of the memory, over the tree of shards.
//
//   rank 0: [0+1] [2]       slice 0 of all sums goes to rank 0, slice 1 to rank 1; there
//   rank 1: [3] [4]         ((0 + 1) + (2 + 3)) + 4, and the slices go back to all
//
// Only moves bytes between ranks, so it has the same bits with every communicator on the CPU.
#pragma once

#include <vector>

#include "trainer/shards/shard_tree.h"
#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

class SliceExchange {
 public:
  // The communicator must outlive it. `shares`: of its ranks.
  SliceExchange(worker::Communicator& communicator, const ShardShares& shares);

  // Collective. `own`: this rank's sums in the order of their shards, flat float32, all of one size
  // that is a multiple of the number of ranks; they are overwritten. `total` gets the sum of all.
  // Throws worker::CommunicatorError.
  void run(const std::vector<torch::Tensor>& own, torch::Tensor& total);

 private:
  void swap_slices(const std::vector<torch::Tensor>& own, std::int64_t size);

  worker::Communicator& communicator_;
  int shards_;
  std::vector<std::vector<ShardNode>> nodes_;       // By rank.
  std::vector<std::vector<torch::Tensor>> slices_;  // By rank and node: those of this rank.
};

}  // namespace ddprun::trainer
