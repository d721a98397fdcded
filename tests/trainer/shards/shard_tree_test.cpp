// Every number of shards up to 16 with every number of ranks: the sums that come of it, written
// out, beside those of a tree that is built level by level.
#include "trainer/shards/shard_tree.h"

#include <algorithm>
#include <string>

#include "tests/testing/catch.h"

namespace ddprun::trainer {
namespace {

constexpr int shards_max = 16;

std::string sum_of(const std::string& left, const std::string& right) {
  return "(" + left + "+" + right + ")";
}

// Neighbours at distance 1, then 2, then 4: as worker/cpu/reduce.h says of ranks.
std::string tree_over(std::vector<std::string> row) {
  while (row.size() > 1) {
    std::vector<std::string> above;
    for (std::size_t i = 0; i < row.size(); i += 2) {
      above.push_back(i + 1 < row.size() ? sum_of(row[i], row[i + 1]) : row[i]);
    }
    row = above;
  }
  return row.front();
}

std::vector<std::string> names(int shards) {
  std::vector<std::string> all;
  for (int shard = 0; shard < shards; ++shard) all.push_back(std::to_string(shard));
  return all;
}

// Sums as a rank takes them, by what the counter says.
class Sums {
 public:
  explicit Sums(int shards) : counter_(shards) {}

  void push(ShardNode node, std::string sum) {
    for (int met = counter_.push(node); met > 0; --met) {
      sum = sum_of(sums_.back(), sum);
      sums_.pop_back();
    }
    sums_.push_back(sum);
    most_ = std::max(most_, sums_.size());
  }

  const std::vector<ShardNode>& nodes() const { return counter_.kept(); }
  const std::vector<std::string>& sums() const { return sums_; }
  std::size_t most() const { return most_; }

 private:
  NodeCounter counter_;
  std::vector<std::string> sums_;
  std::size_t most_ = 0;
};

ShardRange share_of(int shards, int world_size, int rank) {
  return even_shares(shards, world_size)[static_cast<std::size_t>(rank)];
}

Sums sums_of_rank(int shards, int world_size, int rank) {
  Sums sums(shards);
  const ShardRange range = share_of(shards, world_size, rank);
  for (int shard = range.first; shard < range.end; ++shard) {
    sums.push({0, shard}, std::to_string(shard));
  }
  return sums;
}

int bits_of(int number) {
  int bits = 0;
  for (; number > 0; number /= 2) ++bits;
  return bits;
}

}  // namespace

TEST_CASE("every shard belongs to one rank, and no rank has two more than another") {
  for (int shards = 1; shards <= shards_max; ++shards) {
    for (int world = 1; world <= shards; ++world) {
      CAPTURE(shards, world);
      int next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const ShardRange range = share_of(shards, world, rank);
        CHECK(range.first == next);
        CHECK((range.count() == shards / world || range.count() == (shards - 1) / world + 1));
        next = range.end;
      }
      CHECK(next == shards);
    }
  }
}

TEST_CASE("the sum over shards is one and the same on every number of ranks") {
  for (int shards = 1; shards <= shards_max; ++shards) {
    const std::string expected = tree_over(names(shards));
    for (int world = 1; world <= shards; ++world) {
      CAPTURE(shards, world);
      Sums all(shards);
      for (int rank = 0; rank < world; ++rank) {
        const Sums own = sums_of_rank(shards, world, rank);
        CHECK(own.nodes() == nodes_of(shards, share_of(shards, world, rank)));
        for (std::size_t i = 0; i < own.nodes().size(); ++i) {
          all.push(own.nodes()[i], own.sums()[i]);
        }
      }
      REQUIRE(all.sums().size() == 1);
      CHECK(all.sums().front() == expected);
    }
  }
}

TEST_CASE("a rank keeps few sums, however many shards it has") {
  for (int shards = 1; shards <= shards_max; ++shards) {
    for (int world = 1; world <= shards; ++world) {
      for (int rank = 0; rank < world; ++rank) {
        CAPTURE(shards, world, rank);
        const int own = share_of(shards, world, rank).count();
        // Up one side of the tree and down the other.
        CHECK(sums_of_rank(shards, world, rank).most() <=
              static_cast<std::size_t>(2 * bits_of(own)));
        if (world == 1) {
          CHECK(sums_of_rank(shards, world, rank).most() <= static_cast<std::size_t>(bits_of(own)));
        }
      }
    }
  }
}

TEST_CASE("an all-reduce over ranks is the tree over shards exactly where the core says so") {
  for (int shards = 1; shards <= shards_max; ++shards) {
    const std::string expected = tree_over(names(shards));
    for (int world = 1; world <= shards; ++world) {
      CAPTURE(shards, world);
      std::vector<std::string> contributions;
      bool one_each = true;
      for (int rank = 0; rank < world; ++rank) {
        const Sums own = sums_of_rank(shards, world, rank);
        one_each = one_each && own.sums().size() == 1;
        contributions.push_back(own.sums().front());
      }
      CHECK(ranks_continue_tree(shards, even_shares(shards, world)) ==
            (one_each && tree_over(contributions) == expected));
    }
  }
  CHECK(ranks_continue_tree(8, even_shares(8, 8)));
  CHECK(ranks_continue_tree(8, even_shares(8, 2)));
  CHECK(ranks_continue_tree(7, even_shares(7, 4)));  // 2, 2, 2 and 1.
  CHECK(ranks_continue_tree(7, even_shares(7, 7)));
  CHECK_FALSE(ranks_continue_tree(8, even_shares(8, 3)));
  CHECK_FALSE(ranks_continue_tree(
      6, even_shares(6, 2)));  // (0 + 1) + 2 and (3 + 4) + 5 have no common tree.
}

TEST_CASE("many shards fit into the numbers of the tree") {
  constexpr int many = 65'536;
  CHECK(nodes_of(many, {0, many}) == std::vector<ShardNode>{{16, 0}});
  CHECK(nodes_of(many - 1, {0, many - 1}) == std::vector<ShardNode>{{16, 0}});
  CHECK(share_of(many, many, many - 1) == ShardRange{many - 1, many});
}

}  // namespace ddprun::trainer
