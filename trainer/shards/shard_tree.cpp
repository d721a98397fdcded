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

ShardShares even_shares(int shards, int world_size) {
  assert(1 <= world_size && world_size <= shards);
  std::vector<int> counts(static_cast<std::size_t>(world_size), shards / world_size);
  std::fill_n(counts.begin(), shards % world_size, shards / world_size + 1);
  return shares_of(counts);
}

ShardShares shares_of(const std::vector<int>& counts) {
  ShardShares shares;
  int first = 0;
  for (const int count : counts) {
    shares.push_back({first, first + count});
    first += count;
  }
  return shares;
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

bool ranks_continue_tree(int shards, const ShardShares& shares) {
  // Enough, because both trees are binary: where a node and the two that make it are nodes of the
  // other tree, too, they are each other's there.
  for (std::size_t ranks = 1; ranks / 2 < shares.size(); ranks *= 2) {
    for (std::size_t rank = 0; rank < shares.size(); rank += ranks) {
      const std::size_t last = std::min(rank + ranks, shares.size()) - 1;
      if (nodes_of(shards, {shares[rank].first, shares[last].end}).size() != 1) return false;
    }
  }
  return true;
}

}  // namespace ddprun::trainer
