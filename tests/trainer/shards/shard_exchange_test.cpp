// Gradients of shards, added up by any number of ranks that talk to each other, beside the tree
// over all of them in one place.
#include <cstring>
#include <numeric>

#include "tests/testing/catch.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/torch/thread_communicator.h"
#include "trainer/shards/shard_sums.h"
#include "trainer/shards/slice_exchange.h"
#include "worker/cpu/reduce.h"

namespace ddprun::trainer {
namespace {

using worker::Communicator;
using worker::DataType;
using worker::ReduceOp;

constexpr std::int64_t figures_size = 5;

// Two gradients, one of them in another order of memory, and figures.
struct Shard {
  torch::Tensor weight, bias, figures;
};

// Of sizes so different that another order of additions shows.
torch::Tensor drawn(const std::vector<std::int64_t>& sizes, std::int64_t seed) {
  const at::Generator generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  const auto normal = [&] { return at::randn(sizes, generator); };
  return normal() * at::exp(4 * normal());
}

std::vector<Shard> drawn_shards(int count) {
  std::vector<Shard> shards;
  for (int i = 0; i < count; ++i) {
    shards.push_back({drawn({3, 2, 5, 5}, 3 * i).contiguous(at::MemoryFormat::ChannelsLast),
                      drawn({7}, 3 * i + 1), drawn({figures_size}, 3 * i + 2)});
  }
  // All shards' -0 stays; a sum that began with 0 would lose it.
  for (Shard& shard : shards) shard.bias[0] = -0.0F;
  return shards;
}

template <class Which>
torch::Tensor tree_over(const std::vector<Shard>& shards, ReduceOp op, const Which& which) {
  std::vector<const void*> sources;
  for (const Shard& shard : shards) sources.push_back(which(shard).data_ptr());
  torch::Tensor result = torch::empty_like(which(shards.front()));
  std::vector<void*> destinations{result.data_ptr()};
  worker::reduce_tree(sources, destinations, static_cast<std::size_t>(result.numel()),
                      DataType::Float32, op, /*streaming=*/false);
  return result;
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.strides() == b.strides() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

// What a rank does in a step.
void add_own_shards(ShardRange own, const std::vector<Shard>& shards,
                    const std::vector<torch::Tensor>& parameters, ShardSums& sums) {
  for (int i = own.first; i < own.end; ++i) {
    const Shard& shard = shards[static_cast<std::size_t>(i)];
    torch::Tensor(parameters[0]).mutable_grad() = shard.weight;
    torch::Tensor(parameters[1]).mutable_grad() = shard.bias;
    sums.add(i, shard.figures);
  }
}

std::vector<torch::Tensor> parameters_like(const Shard& shard) {
  return {torch::zeros_like(shard.weight), torch::zeros_like(shard.bias)};
}

void check_total(const FlatSum& total, const std::vector<Shard>& shards) {
  const auto weight = [](const Shard& shard) { return shard.weight; };
  const auto bias = [](const Shard& shard) { return shard.bias; };
  const auto figures = [](const Shard& shard) { return shard.figures; };
  RANK_CHECK(same_bits(total.gradients[0], tree_over(shards, ReduceOp::Sum, weight)));
  RANK_CHECK(same_bits(total.gradients[1], tree_over(shards, ReduceOp::Sum, bias)));
  RANK_CHECK(same_bits(total.figures, tree_over(shards, ReduceOp::Sum, figures)));
  torch::Tensor(total.all_gradients).div_(static_cast<std::int64_t>(shards.size()));
  RANK_CHECK(same_bits(total.gradients[0], tree_over(shards, ReduceOp::Average, weight)));
}

void check_exchange(const std::vector<Shard>& shards, const ShardShares& shares) {
  const int count = static_cast<int>(shards.size());
  const int world = static_cast<int>(shares.size());
  CAPTURE(count, world);
  const auto errors = worker::spawn({.world = world}, [&](Communicator& communicator) {
    at::set_num_threads(1);
    const auto parameters = parameters_like(shards.front());
    ShardSums sums(count, parameters, figures_size, world);
    SliceExchange exchange(communicator, shares);
    for (int step = 0; step < 2; ++step) {  // Memory is used again.
      const ShardRange share = shares[static_cast<std::size_t>(communicator.rank())];
      add_own_shards(share, shards, parameters, sums);
      std::vector<torch::Tensor> own;
      for (const FlatSum& sum : sums.sums()) own.push_back(sum.flat);
      FlatSum total = sums.make_sum();
      exchange.run(own, total.flat);
      sums.clear();
      check_total(total, shards);
    }
  });
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(error.empty());
  }
}

}  // namespace

TEST_CASE("any number of ranks has the bits of the tree over shards", "[trainer][shards]") {
  for (const int count : {1, 2, 3, 5, 6, 8}) {
    const std::vector<Shard> shards = drawn_shards(count);
    for (int world = 1; world <= count; ++world) check_exchange(shards, even_shares(count, world));
  }
}

TEST_CASE("16.3: so has any division of the shards", "[trainer][shards]") {
  const std::vector<Shard> shards = drawn_shards(7);
  for (const auto& counts : {std::vector{1, 6}, {6, 1}, {2, 1, 4}, {1, 3, 1, 2}}) {
    check_exchange(shards, shares_of(counts));
  }
}

TEST_CASE("a sum in the order of the shards has other bits than the tree", "[trainer][shards]") {
  const std::vector<Shard> shards = drawn_shards(8);
  torch::Tensor sum = shards.front().weight.clone();
  for (std::size_t i = 1; i < shards.size(); ++i) sum += shards[i].weight;
  CHECK_FALSE(same_bits(
      sum, tree_over(shards, ReduceOp::Sum, [](const Shard& shard) { return shard.weight; })));
}

TEST_CASE("the last shard's gradients are completed one by one", "[trainer][shards]") {
  for (const int count : {1, 2, 3, 4, 7}) {
    CAPTURE(count);
    std::vector<Shard> shards = drawn_shards(count);
    const auto parameters = parameters_like(shards.front());
    ShardSums sums(count, parameters, figures_size, 1);
    for (int i = 0; i + 1 < count; ++i) {
      const Shard& shard = shards[static_cast<std::size_t>(i)];
      torch::Tensor(parameters[0]).mutable_grad() = shard.weight;
      torch::Tensor(parameters[1]).mutable_grad() = shard.bias;
      sums.add(i, shard.figures);
    }
    torch::Tensor weight = shards.back().weight.clone();
    torch::Tensor figures = shards.back().figures.clone();
    sums.complete(0, weight);
    sums.complete_figures(figures);
    CHECK(same_bits(
        weight, tree_over(shards, ReduceOp::Sum, [](const Shard& shard) { return shard.weight; })));
    CHECK(same_bits(figures, tree_over(shards, ReduceOp::Sum,
                                       [](const Shard& shard) { return shard.figures; })));
  }
}

TEST_CASE("parameters that cannot be added up in float32 are refused", "[trainer][shards]") {
  CHECK_THROWS_AS(ShardSums(2, {torch::zeros({2}, torch::kFloat64)}, 1, 1), std::invalid_argument);
  CHECK_THROWS_AS(ShardSums(2, {torch::zeros({4}).expand({2, 4})}, 1, 1), std::invalid_argument);
}

}  // namespace ddprun::trainer
