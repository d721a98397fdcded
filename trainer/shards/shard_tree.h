// Virtual shards: which of them a rank has, and in what order sums over all shards are taken, which
// is the same whoever has them. A core: no sockets, threads or clock.
//
//   shards 0 1 2 3 4:   ((0 + 1) + (2 + 3)) + 4    the tree of worker/cpu/reduce.h over 5 ranks
//   2 ranks:   rank 0 has 0 1 2, which make the sums (0 + 1) and 2; rank 1 has 3 and 4, which meet
//              higher up, and not with each other
//
// A node of the tree is the sum over shards that stand together: on level 0 a shard, on level l
// those from index * 2^l to before (index + 1) * 2^l, as far as there are any.
#pragma once

#include <vector>

namespace ddprun::trainer {

struct ShardRange {
  int first = 0;
  int end = 0;  // The one after the last.

  int count() const { return end - first; }
  bool operator==(const ShardRange&) const = default;
};

// Of each rank: shards that stand together, behind those of the rank before. None has no shard.
using ShardShares = std::vector<ShardRange>;

// As many for each rank, or one more, the lower ranks. 1 <= world_size <= shards.
ShardShares even_shares(int shards, int world_size);
ShardShares shares_of(const std::vector<int>& counts);  // By rank.

struct ShardNode {
  int level = 0;
  int index = 0;

  bool operator==(const ShardNode&) const = default;
};

// Adds up nodes that come from the left to the right, like a binary counter: what cannot meet yet
// is kept, at most one node a level.
class NodeCounter {
 public:
  explicit NodeCounter(int shards) : shards_(shards) {}

  // Takes the node that comes after those so far. Returns with how many of the kept ones, from the
  // last one on, it has met: their sum takes their place.
  int push(ShardNode node);

  // In the order of their shards. All shards together are one node.
  const std::vector<ShardNode>& kept() const { return kept_; }

 private:
  int shards_;
  std::vector<ShardNode> kept_;
};

// The sums that a rank has made when it is through with its shards.
std::vector<ShardNode> nodes_of(int shards, ShardRange range);

// True where every rank has one sum, and the tree over ranks (worker/cpu/reduce.h) is what is left
// of the tree over shards: the sum over ranks then has the bits of the sum over shards.
bool ranks_continue_tree(int shards, const ShardShares& shares);

}  // namespace ddprun::trainer
