// Reducing all gradients at once after backward, instead of while it computes.
#include <torch/optim/sgd.h>

#include <atomic>
#include <functional>
#include <utility>

#include "tests/testing/catch.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/torch/small_net.h"

namespace ddprun::worker {
namespace {

DataParallelOptions whole_step() {
  DataParallelOptions options;
  options.buckets = BucketLimits::whole_step();
  return options;
}

TEST_CASE("the plan of a whole step has one bucket for each dtype", "[worker][buckets]") {
  const std::vector<GradientSize> sizes{{std::size_t{100} << 20, 0}, {4, 1}, {64, 0}, {4, 0}};
  const BucketPlan plan = plan_buckets(sizes, reverse_order(4), BucketLimits::whole_step());
  REQUIRE(plan.buckets.size() == 2);
  CHECK(plan.buckets[0].gradients.size() + plan.buckets[1].gradients.size() == 4);
}

TEST_CASE("nothing is reduced before the last gradient is there", "[worker][ddp]") {
  const Batch batch = random_batch(1, 4);
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(2, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, whole_step());
    RANK_CHECK(ddp.bucket_count() == 1);
    std::atomic<bool> first_layer_done = false;
    std::atomic<bool> early = false;
    std::atomic<int> reductions = 0;
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      const at::Tensor output = ddp.forward(batch.images);
      // conv1.bias and conv1.weight come last; when their node starts, neither is there.
      first_layer_done = false;
      const auto hook =
          net->conv1->weight.register_hook([&](const at::Tensor&) { first_layer_done = true; });
      communicator.before_all_reduce = [&] {
        ++reductions;
        if (!first_layer_done) early = true;
      };
      loss_of(output, batch).backward();
      communicator.before_all_reduce = nullptr;
      net->conv1->weight.remove_hook(hook);
    }
    RANK_CHECK(!early);
    RANK_CHECK(reductions == 3);
    RANK_CHECK(ddp.bucket_count() == 1);
  });
}

// All weights after five steps.
std::vector<at::Tensor> train(Communicator& communicator, const DataParallelOptions& options) {
  at::set_num_threads(1);
  SmallNet net = seeded(3, [] { return SmallNet(); });
  DistributedDataParallel ddp(net, communicator, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::uint64_t step = 0; step < 5; ++step) {
    const Batch part = random_batch(step, 12).part(communicator.rank(), 3);
    ddp.zero_grad();
    loss_of(ddp.forward(part.images), part).backward();
    optimizer.step();
  }
  return copies(net->parameters());
}

TEST_CASE("gradients can be completed before they travel, and become a sum", "[worker][ddp]") {
  for (const auto& [ranks, at_once] : {std::pair(2, false), {2, true}, {1, false}}) {
    run_ranks_well(ranks, [&, at_once = at_once](ThreadCommunicator& communicator) {
      SmallNet net = seeded(2, [] { return SmallNet(); });
      const Batch batch = random_batch(1, 4).part(communicator.rank(), 2);
      loss_of(net->forward(batch.images), batch).backward();
      const std::vector<at::Tensor> own = gradients_of(*net);
      net->zero_grad();

      DataParallelOptions options = at_once ? whole_step() : options_with_tiny_buckets();
      options.sum = true;
      std::vector<int> completed(own.size(), 0);
      options.complete_gradient = [&](std::size_t parameter, const at::Tensor& gradient) {
        ++completed[parameter];
        at::Tensor(gradient).add_(own[parameter]);  // Twice its own, of each rank.
      };
      DistributedDataParallel ddp(net, communicator, options);
      {
        const auto local = ddp.no_sync();  // Nothing travels, so nothing is completed.
        loss_of(ddp.forward(batch.images), batch).backward();
      }
      RANK_CHECK(completed == std::vector<int>(own.size(), 0));
      ddp.zero_grad();
      loss_of(ddp.forward(batch.images), batch).backward();

      RANK_CHECK(completed == std::vector<int>(own.size(), 1));
      const std::vector<at::Tensor> reduced = gradients_of(*net);
      for (std::size_t i = 0; i < own.size(); ++i) {
        at::Tensor both = own[i] + own[i];
        all_reduce(communicator, both, ReduceOp::Sum);
        RANK_CHECK(at::equal(reduced[i], both));
      }
      net->zero_grad();
    });
  }
}

DataParallelOptions sums() {
  DataParallelOptions options = options_with_tiny_buckets();
  options.sum = true;
  return options;
}

TEST_CASE("a step begins with no sum, however the last step's was cleared", "[worker][ddp]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    SmallNet net = seeded(2, [] { return SmallNet(); });
    const Batch batch = random_batch(1, 4).part(communicator.rank(), 2);
    DistributedDataParallel ddp(net, communicator, sums());
    loss_of(ddp.forward(batch.images), batch).backward();
    const std::vector<at::Tensor> sum = gradients_of(*net);
    const std::vector<std::function<void()>> ways{
        [&] { ddp.zero_grad(); }, [&] { ddp.zero_grad(/*set_to_none=*/false); },
        [&] { net->zero_grad(); }, [&] { net->zero_grad(/*set_to_none=*/false); },
        [&] {  // What is added on this rank alone goes with it.
          const auto local = ddp.no_sync();
          loss_of(ddp.forward(batch.images), batch).backward();
          net->zero_grad(/*set_to_none=*/false);
        }};
    for (const auto& clear : ways) {
      const at::Tensor loss = loss_of(ddp.forward(batch.images), batch);
      clear();
      loss.backward();
      RANK_CHECK(all_close(gradients_of(*net), sum));
    }
    ddp.zero_grad();
  });
}

TEST_CASE("a backward that adds to a sum over the ranks is refused", "[worker][ddp][errors]") {
  for (const bool first_alone : {false, true}) {
    const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
      SmallNet net = seeded(2, [] { return SmallNet(); });
      const Batch batch = random_batch(1, 4).part(communicator.rank(), 2);
      DistributedDataParallel ddp(net, communicator, sums());
      const auto backward = [&] { loss_of(ddp.forward(batch.images), batch).backward(); };
      backward();
      if (first_alone) {
        const auto local = ddp.no_sync();
        backward();
      }
      backward();
    });
    // Whoever is later hears of the other one's end.
    std::string messages;
    for (const auto& error : errors) messages += message_of<UnreducedGradients>(error);
    INFO(messages);
    CHECK(messages.find("' is the sum over the ranks that the last reduction has left") !=
          std::string::npos);
    CHECK(messages.find("call zero_grad() before the first backward of each step") !=
          std::string::npos);
  }
}

TEST_CASE("weights have the same bits with and without overlap", "[worker][ddp][communicator]") {
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp}) {
    const auto errors = spawn({3, wiring}, [&](Communicator& communicator) {
      const std::vector<at::Tensor> overlapped = train(communicator, options_with_tiny_buckets());
      const std::vector<at::Tensor> at_once = train(communicator, whole_step());
      RANK_CHECK(all_equal(overlapped, at_once));
    });
    for (const std::string& error : errors) CHECK(error == "");
  }
}

}  // namespace
}  // namespace ddprun::worker
