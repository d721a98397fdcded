// Several modules on one communicator: in one backward, in several, and with gradients that arrive
// in another order on every rank.
#include <mutex>
#include <optional>

#include "tests/testing/catch.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/torch/small_net.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::worker {
namespace {

using torch::nn::Linear;

// Two layers, of which a forward uses the second only if told to.
struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    first = register_module("first", Linear(4, 4));
    second = register_module("second", Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x, bool both) {
    const at::Tensor hidden = first(x).tanh();
    return both ? second(hidden) : hidden;
  }
  Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoLayers);

TwoLayers two_layers(std::uint64_t seed) {
  return seeded(seed, [] { return TwoLayers(); });
}

at::Tensor input(int rank, int step) {
  return seeded(static_cast<std::uint64_t>(10 * step + rank), [] { return torch::randn({3, 4}); });
}

DataParallelOptions tiny(bool find_unused) {
  DataParallelOptions options;
  options.buckets = {16, 64, 16};
  options.find_unused_parameters = find_unused;
  return options;
}

struct Step {
  bool left_first;  // Which of the two the loss names first.
  bool left_both, right_both;
};

at::Tensor loss_of_both(const at::Tensor& left, const at::Tensor& right, const Step& step) {
  const at::Tensor a = left.pow(2).mean(), b = right.pow(3).mean();
  return step.left_first ? a + b : b + a;
}

// Which layers a rank uses, and the order of its loss, change from step to step and rank to rank.
Step step_of(int rank, int step) {
  const int code = (step * 5 + rank * 3) % 8;
  return {(code & 1) != 0, (code & 2) != 0, (code & 4) != 0};
}

TEST_CASE("two modules whose unused parameters differ between ranks reduce in one order",
          "[worker][ddp][several]") {
  constexpr int world = 3, steps = 8;
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp}) {
    const auto errors = spawn({world, wiring}, [&](Communicator& communicator) {
      at::set_num_threads(1);
      TwoLayers left = two_layers(1), right = two_layers(2);
      DistributedDataParallel left_ddp(left, communicator, tiny(true));
      DistributedDataParallel right_ddp(right, communicator, tiny(true));
      for (int k = 0; k < steps; ++k) {
        left_ddp.zero_grad();
        right_ddp.zero_grad();
        const Step step = step_of(communicator.rank(), k);
        const at::Tensor x = input(communicator.rank(), k);
        const at::Tensor of_left = left_ddp.forward(x, step.left_both);
        const at::Tensor of_right = right_ddp.forward(x, step.right_both);
        loss_of_both(of_left, of_right, step).backward();

        TwoLayers left_alone = two_layers(1), right_alone = two_layers(2);
        for (int rank = 0; rank < world; ++rank) {
          const Step peers = step_of(rank, k);
          const at::Tensor theirs = input(rank, k);
          (loss_of_both(left_alone->forward(theirs, peers.left_both),
                        right_alone->forward(theirs, peers.right_both), peers) /
           world)
              .backward();
        }
        RANK_CHECK(all_close(gradients_of(*left), gradients_of(*left_alone)));
        RANK_CHECK(all_close(gradients_of(*right), gradients_of(*right_alone)));
      }
    });
    for (const std::string& error : errors) CHECK(error == "");
  }
}

TEST_CASE("modules whose backwards come one after the other reduce each in its own",
          "[worker][ddp][several]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    TwoLayers left = two_layers(1), right = two_layers(2);
    DistributedDataParallel left_ddp(left, communicator, tiny(false));
    DistributedDataParallel right_ddp(right, communicator, tiny(false));
    for (int k = 0; k < 3; ++k) {
      left_ddp.zero_grad();
      right_ddp.zero_grad();
      const at::Tensor x = input(communicator.rank(), k);
      // Both forwards first: the left one's backward cannot know that the right one's is not its.
      const at::Tensor left_loss = left_ddp.forward(x, true).pow(2).mean();
      const at::Tensor right_loss = right_ddp.forward(x, true).pow(2).mean();
      left_loss.backward();
      TwoLayers alone = two_layers(1);
      for (int rank = 0; rank < 2; ++rank) {
        (alone->forward(input(rank, k), true).pow(2).mean() / 2).backward();
      }
      RANK_CHECK(all_close(gradients_of(*left), gradients_of(*alone)));
      RANK_CHECK(!right->first->weight.grad().defined());
      right_loss.backward();
      RANK_CHECK(right->first->weight.grad().defined());
    }
  });
}

TEST_CASE("the first module in backward is reduced before backward comes to the second",
          "[worker][ddp][several]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    TwoLayers generator = two_layers(1), judge = two_layers(2);
    DistributedDataParallel generator_ddp(generator, communicator, tiny(false));
    DistributedDataParallel judge_ddp(judge, communicator, tiny(false));
    for (int k = 0; k < 2; ++k) {
      std::mutex mutex;
      std::condition_variable reduced;
      int reductions = 0;
      const at::Tensor made = generator_ddp.forward(input(communicator.rank(), k), true);
      const at::Tensor loss = judge_ddp.forward(made, true).pow(2).mean();
      communicator.before_all_reduce = [&] {
        const std::lock_guard lock(mutex);
        ++reductions;
        reduced.notify_all();
      };
      // Backward goes on only when the judge's four buckets are reduced.
      made.register_hook([&](const at::Tensor&) {
        std::unique_lock lock(mutex);
        RANK_CHECK(reduced.wait_for(lock, testing::patience(std::chrono::seconds(20)),
                                    [&] { return reductions == 4; }));
      });
      loss.backward();
      communicator.before_all_reduce = nullptr;
      RANK_CHECK(judge_ddp.bucket_count() == 4);
    }
  });
}

TEST_CASE("a rank without a batch follows a backward through two modules",
          "[worker][ddp][several]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    TwoLayers generator = two_layers(1), judge = two_layers(2);
    DistributedDataParallel generator_ddp(generator, communicator, tiny(true));
    DistributedDataParallel judge_ddp(judge, communicator, tiny(false));
    for (int k = 0; k < 4; ++k) {
      generator_ddp.zero_grad();
      judge_ddp.zero_grad();
      if ((communicator.rank() + k) % 2 == 0) {
        judge_ddp.forward(generator_ddp.forward(input(0, k), true), true).pow(2).mean().backward();
      } else {
        reduce_without_backward({&generator_ddp, &judge_ddp});
      }
      TwoLayers generator_alone = two_layers(1), judge_alone = two_layers(2);
      (judge_alone->forward(generator_alone->forward(input(0, k), true), true).pow(2).mean() / 2)
          .backward();
      RANK_CHECK(all_close(gradients_of(*generator), gradients_of(*generator_alone)));
      RANK_CHECK(all_close(gradients_of(*judge), gradients_of(*judge_alone)));
    }
  });
}

TEST_CASE("what holds up a module is named when it runs again", "[worker][ddp][several][errors]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    TwoLayers left = two_layers(1), right = two_layers(2);
    DistributedDataParallel left_ddp(left, communicator, tiny(false));
    DistributedDataParallel right_ddp(right, communicator, tiny(false));
    const at::Tensor x = input(communicator.rank(), 0);
    const at::Tensor of_left = left_ddp.forward(x, true);
    const at::Tensor of_right = right_ddp.forward(x, /*both=*/false);
    (of_left.mean() + of_right.mean()).backward();
    left_ddp.forward(x, true);
  });

  for (const auto& error : errors) {
    REQUIRE(error);
    const std::string message = message_of<std::runtime_error>(error);
    CHECK(message.find("'second.weight'") != std::string::npos);
    CHECK(message.find("find_unused_parameters") != std::string::npos);
  }
}

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const Linear& of_another)
      : own(register_module("own", Linear(4, 4))), tied(register_module("tied", of_another)) {}
  at::Tensor forward(const at::Tensor& x) { return own(tied(x)); }
  Linear own, tied;
};

TEST_CASE("a parameter of two wrapped modules is refused, until the first wrapper is gone",
          "[worker][ddp][several][errors]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    TwoLayers net = two_layers(1);
    const auto head = std::make_shared<HeadImpl>(net->first);
    auto first = std::make_unique<DistributedDataParallel<TwoLayersImpl>>(net, communicator);
    std::string message;
    try {
      DistributedDataParallel second(head, communicator);
    } catch (const std::invalid_argument& error) {
      message = error.what();
    }
    RANK_CHECK(message.find("'tied.weight'") != std::string::npos);

    first->forward(input(communicator.rank(), 0), true).pow(2).mean().backward();
    RANK_CHECK(net->first->weight.grad().defined());
    first.reset();
    DistributedDataParallel second(head, communicator);
    second.forward(input(communicator.rank(), 1)).pow(2).mean().backward();
  });
}

TEST_CASE("a communicator has one queue while anybody holds it", "[worker][ddp][several]") {
  ThreadWorld world(1);
  ThreadCommunicator one(world, 0), other(world, 0);
  const auto queue = reduction_queue_of(one, at::kCPU);
  CHECK(reduction_queue_of(one, at::kCPU) == queue);
  CHECK(reduction_queue_of(other, at::kCPU) != queue);
  CHECK(ReducerGroup::of(one) == ReducerGroup::of(one));
}

TEST_CASE("a communicator has its own queue where one has died whose queue is still held",
          "[worker][ddp][several]") {
  ThreadWorld before(1), now(1);
  std::optional<ThreadCommunicator> communicator;
  communicator.emplace(before, 0);
  const void* const place = &*communicator;
  const auto held = reduction_queue_of(*communicator, at::kCPU);
  const auto held_group = ReducerGroup::of(*communicator);
  communicator.emplace(now, 0);
  REQUIRE(&*communicator == place);

  float value = 1;
  {
    const auto queue = reduction_queue_of(*communicator, at::kCPU);
    CHECK(queue != held);
    CHECK(reduction_queue_of(*communicator, at::kCPU) == queue);
    CHECK(ReducerGroup::of(*communicator) != held_group);
    queue->all_reduce(&value, 1, DataType::Float32, ReduceOp::Sum);
    queue->wait();
  }
  CHECK(now.reductions == 1);
  CHECK(before.reductions == 0);
}

}  // namespace
}  // namespace ddprun::worker
