// What a hook is called with, what it may do, and what comes of one that fails.
#include "worker/torch/communication_hook.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>

#include "tests/testing/catch.h"
#include "tests/worker/torch/small_net.h"
#include "worker/torch/hooks/narrow_gradients.h"
#include "worker/torch/hooks/power_sgd.h"

namespace ddprun::worker {
namespace {

class Hook : public CommunicationHook {
 public:
  using Reduce = std::function<void(const GradientBucket&, Communicator&)>;
  explicit Hook(Reduce reduce, std::string name = "of a test")
      : reduce_(std::move(reduce)), name_(std::move(name)) {}

  void reduce(const GradientBucket& bucket, Communicator& communicator) override {
    reduce_(bucket, communicator);
  }
  std::string description() const override { return name_; }

 private:
  Reduce reduce_;
  std::string name_;
};

DataParallelOptions with_hook(Hook::Reduce reduce, std::string name = "of a test") {
  DataParallelOptions options = options_with_tiny_buckets();
  options.communication_hook = std::make_shared<Hook>(std::move(reduce), std::move(name));
  return options;
}

Batch batch_of(int rank) { return random_batch(static_cast<std::uint64_t>(rank), 4); }

// Of one step on each rank, those of rank 0.
std::vector<at::Tensor> reduced_gradients(const DataParallelOptions& options) {
  std::vector<at::Tensor> gradients;
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(1, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options);
    const Batch batch = batch_of(communicator.rank());
    loss_of(ddp.forward(batch.images), batch).backward();
    if (communicator.rank() == 0) gradients = gradients_of(*net);
  });
  return gradients;
}

TEST_CASE("a hook that does what is done without one changes nothing", "[worker][ddp][hook]") {
  const auto unchanged = [](const GradientBucket& bucket, Communicator& communicator) {
    all_reduce(communicator, bucket.values, bucket.op);
  };
  for (const bool sum : {false, true}) {
    DataParallelOptions plain = options_with_tiny_buckets(), hooked = with_hook(unchanged);
    plain.sum = hooked.sum = sum;
    CHECK(all_equal(reduced_gradients(hooked), reduced_gradients(plain)));
  }
}

TEST_CASE("a hook gets each gradient once, in buckets in the order of their reduction",
          "[worker][ddp][hook]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    SmallNet net = seeded(1, [] { return SmallNet(); });
    net->conv2->weight.set_data(
        net->conv2->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    const std::vector<at::Tensor> parameters = net->parameters();
    std::vector<std::size_t> indices;
    std::multiset<std::size_t> seen;
    DataParallelOptions options = with_hook([&](const GradientBucket& bucket, Communicator& peers) {
      indices.push_back(bucket.index);
      RANK_CHECK(bucket.op == ReduceOp::Average);
      RANK_CHECK(bucket.values.dim() == 1 && bucket.values.is_contiguous());
      RANK_CHECK(!at::GradMode::is_enabled());
      std::int64_t numbers = 0;
      for (const auto& [number, values] : bucket.gradients) {
        numbers += values.count_nonzero().item<std::int64_t>();
        seen.insert(number);
        RANK_CHECK(values.sizes() == parameters[number].sizes());
        RANK_CHECK(values.strides() == parameters[number].strides());
        RANK_CHECK(values.storage().is_alias_of(bucket.values.storage()));
      }
      // Padding is zeros, also where a gradient has lain in another order.
      RANK_CHECK(bucket.values.count_nonzero().item<std::int64_t>() == numbers);
      all_reduce(peers, bucket.values, bucket.op);
    });
    DistributedDataParallel ddp(net, communicator, options);
    const Batch batch = batch_of(communicator.rank());
    for (int step = 0; step < 2; ++step) {  // The second one in the settled order of buckets.
      indices.clear();
      seen.clear();
      ddp.zero_grad();
      const std::size_t buckets = ddp.bucket_count();  // Of this order.
      loss_of(ddp.forward(batch.images), batch).backward();
      RANK_CHECK(buckets > 1 && indices.size() == buckets);
      for (std::size_t i = 0; i < indices.size(); ++i) RANK_CHECK(indices[i] == i);
      RANK_CHECK(seen.size() == parameters.size());
      RANK_CHECK(std::set<std::size_t>(seen.begin(), seen.end()).size() == seen.size());
    }
  });
}

TEST_CASE("what a hook leaves is the gradient", "[worker][ddp][hook]") {
  const auto gradients =
      reduced_gradients(with_hook([](const GradientBucket& bucket, Communicator& communicator) {
        for (const auto& [number, values] : bucket.gradients) {
          values.fill_(static_cast<double>(number) + communicator.world_size());
        }
      }));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    CHECK(at::equal(gradients[i], at::full_like(gradients[i], static_cast<double>(i) + 2)));
  }
}

// That of docs/library.md.
TEST_CASE("a hook may change a rank's gradients before they travel", "[worker][ddp][hook]") {
  class Clipped : public CommunicationHook {
   public:
    void reduce(const GradientBucket& bucket, Communicator& communicator) override {
      for (const auto& [parameter, values] : bucket.gradients) values.clamp_(-0.01, 0.01);
      all_reduce(communicator, bucket.values, bucket.op);
    }
    std::string description() const override { return "clipped to 0.01"; }
  };
  std::vector<at::Tensor> expected;
  for (int rank = 0; rank < 2; ++rank) {
    SmallNet net = seeded(1, [] { return SmallNet(); });
    const Batch batch = batch_of(rank);
    loss_of(net->forward(batch.images), batch).backward();
    const auto gradients = gradients_of(*net);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor half = gradients[i].clamp(-0.01, 0.01) / 2;
      if (rank == 0) {
        expected.push_back(half);
      } else {
        expected[i] += half;
      }
    }
  }
  DataParallelOptions options = options_with_tiny_buckets();
  options.communication_hook = std::make_shared<Clipped>();
  CHECK(all_close(reduced_gradients(options), expected));
}

TEST_CASE("a hook gets complex gradients as their two parts", "[worker][ddp][hook]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    struct Net : torch::nn::Module {
      Net() { weight = register_parameter("weight", torch::ones({3, 2}, at::kComplexFloat)); }
      at::Tensor forward() { return at::view_as_real(weight).sum(); }
      at::Tensor weight;
    };
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(
        net, communicator, with_hook([](const GradientBucket& bucket, Communicator& peers) {
          RANK_CHECK(bucket.values.scalar_type() == at::kFloat);
          RANK_CHECK(bucket.values.numel() >= 12);
          RANK_CHECK(bucket.gradients.front().values.scalar_type() == at::kComplexFloat);
          all_reduce(peers, bucket.values, bucket.op);
        }));
    (ddp.forward() * (communicator.rank() + 1)).backward();
    RANK_CHECK(at::allclose(at::view_as_real(net->weight.grad()), at::full({3, 2, 2}, 1.5)));
  });
}

TEST_CASE("a hook that fails on one rank ends the step on all, in its words",
          "[worker][ddp][hook]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    SmallNet net = seeded(1, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator,
                                with_hook([](const GradientBucket& bucket, Communicator& peers) {
                                  if (peers.rank() == 1 && bucket.index == 1)
                                    throw std::domain_error("out of ideas");
                                  all_reduce(peers, bucket.values, bucket.op);
                                }));
    const Batch batch = batch_of(communicator.rank());
    loss_of(ddp.forward(batch.images), batch).backward();
  });
  CHECK(message_of<std::domain_error>(errors[1]) == "out of ideas");
  CHECK(message_of<CommunicatorError>(errors[0]) ==
        "rank 1: the communication hook (of a test) failed: out of ideas");
}

TEST_CASE("ranks that disagree about how gradients travel are told so", "[worker][ddp][hook]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    SmallNet net = seeded(1, [] { return SmallNet(); });
    const std::string name = "rank " + std::to_string(communicator.rank()) + "'s own";
    DistributedDataParallel ddp(net, communicator,
                                with_hook([](const GradientBucket&, Communicator&) {}, name));
  });
  CHECK(message_of<ModelMismatch>(errors[1]).find("communication_hook rank 1's own") !=
        std::string::npos);
}

TEST_CASE("a hook that keeps memory for its module serves one at a time", "[worker][ddp][hook]") {
  const bool thin = GENERATE(true, false);
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    DataParallelOptions options = options_with_tiny_buckets();
    if (thin) options.communication_hook = std::make_shared<PowerSgd>();
    if (!thin) options.communication_hook = std::make_shared<NarrowGradients>(at::kBFloat16);
    SmallNet first, second;
    {
      DistributedDataParallel ddp(first, communicator, options);
      std::string refused;
      try {
        DistributedDataParallel other(second, communicator, options);
      } catch (const std::invalid_argument& error) {
        refused = error.what();
      }
      RANK_CHECK(refused.find("serves another wrapped module") != std::string::npos);
    }
    DistributedDataParallel after(second, communicator, options);
  });
}

}  // namespace
}  // namespace ddprun::worker
