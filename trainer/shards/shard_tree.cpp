// At its right end the tree has nodes without a sibling, which stand for their parents at once.
#include "trainer/shards/shard_tree.h"

#include <algorithm>
#include <cassert>
#include <cstdint>

namespace ddprun::trainer {
namespace {

// The first shard after a node's, were there enough of them.
std::int64_t end_of(const ShardNode& node) {
  return (static_cast<std::int64_t>(node.index) + 1) << node.level;
}

}  // namespace

ShardRange shards_of(int shards, int world_size, int rank) {
  assert(1 <= world_size && world_size <= shards && 0 <= rank && rank < world_size);
  const int each = shards / world_size;
  const int more = shards % world_size;  // Ranks that have one more.
  const int first = rank * each + std::min(rank, more);
  return {first, first + each + (rank < more ? 1 : 0)};
}

int NodeCounter::push(ShardNode node) {
  int met = 0;
  while (node.index > 0 || end_of(node) < shards_) {
    const bool is_left = node.index % 2 == 0;
    if (is_left && end_of(node) < shards_) break;  // Its sibling comes later.
    if (!is_left) {
      // Not there: another rank has it.
      if (kept_.empty() || kept_.back() != ShardNode{node.level, node.index - 1}) break;
      kept_.pop_back();
      ++met;
    }
    node = {node.level + 1, node.index / 2};
  }
  kept_.push_back(node);
  return met;
}

std::vector<ShardNode> nodes_of(int shards, ShardRange range) {
  NodeCounter counter(shards);
  for (int shard = range.first; shard < range.end; ++shard) counter.push({0, shard});
  return counter.kept();
}

bool ranks_continue_tree(int shards, int world_size) {
  // Enough, because both trees are binary: where a node and the two that make it are nodes of the
  // other tree, too, they are each other's there.
  for (int ranks = 1; ranks / 2 < world_size; ranks *= 2) {
    for (int rank = 0; rank < world_size; rank += ranks) {
      const int last = std::min(rank + ranks, world_size) - 1;
      const ShardRange range{shards_of(shards, world_size, rank).first,
                             shards_of(shards, world_size, last).end};
      if (nodes_of(shards, range).size() != 1) return false;
    }
  }
  return true;
}

}  // namespace ddprun::trainer
