// What a rank has of the sum over all shards: gradients, and a few figures beside them, added up
// over the tree as its shards come (trainer/shards/shard_tree.h).
//
//   shard 4      5        6        7          of 8, on a rank that has the second half
//   [4]       [4+5]   [4+5][6]  [4 .. 7]      in flat memory: as many at a time as the tree is high
//
// Float32, on one device.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/shards/shard_tree.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

struct FlatSum {
  torch::Tensor flat;                    // One dimension: all that follows, and zeros at its end.
  torch::Tensor all_gradients;           // Of it, in one piece.
  std::vector<torch::Tensor> gradients;  // By parameter; each lies as the parameter does.
  torch::Tensor figures;
};

class ShardSums {
 public:
  // `flat` can be cut into so many `slices` of one size. Memory is taken when it is needed. Throws
  // std::invalid_argument for a parameter that is not dense float32 on the device of the first.
  ShardSums(int shards, std::vector<torch::Tensor> parameters, std::int64_t figures,
            std::int64_t slices);

  // The gradients that the parameters have now, and the figures, are those of this shard, which
  // comes after the shards so far.
  void add(int shard, const torch::Tensor& figures);

  // For the rank's last shard, where all its shards make one sum: adds the sums so far to a
  // gradient, or to the figures, of that shard, in place.
  void complete(std::size_t parameter, torch::Tensor gradient) const;
  void complete_figures(torch::Tensor figures) const;

  // In the order of their shards, to be changed at will until clear().
  std::vector<FlatSum>& sums() { return sums_; }

  void clear();  // The memory stays for the next step.

  FlatSum make_sum() const;

 private:
  torch::Device device() const {
    return parameters_.empty() ? torch::Device(torch::kCPU) : parameters_.front().device();
  }

  int shards_;
  std::vector<torch::Tensor> parameters_;
  std::int64_t figures_;
  std::int64_t slices_;
  NodeCounter counter_;
  std::vector<FlatSum> sums_;  // Of the counter's nodes.
  std::vector<FlatSum> free_;
};

}  // namespace ddprun::trainer
