// Who is at fault in a step of DistributedDataParallel has said so before its peers can fail of it.
#include <torch/nn/modules/activation.h>

#include <stdexcept>

#include "tests/testing/catch.h"
#include "tests/worker/told_peers.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/declare_failure.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::worker {
namespace {

using testing::contains;
using torch::nn::Linear;

struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    first = register_module("first", Linear(4, 6));
    last = register_module("last", Linear(6, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return last(skips ? x.new_ones({2, 6}) : first(x)); }
  Linear first{nullptr}, last{nullptr};
  bool skips = false;  // The first layer: it gets no gradient.
};
TORCH_MODULE(Tower);

using Change = std::function<void(TowerImpl& net, DataParallelOptions& options, Communicator&)>;

// Two steps of a module that `change` has changed before it was wrapped; and, on rank 1, that
// `spoil` has changed before the second step.
void train(Communicator& communicator, const Change& change,
           const std::function<void(TowerImpl&)>& spoil) {
  at::set_num_threads(1);
  Tower net = seeded(1, [] { return Tower(); });
  DataParallelOptions options;
  options.buckets = {16, 64, 16};
  change(*net, options, communicator);
  DistributedDataParallel ddp(net, communicator, options);
  for (int step = 0; step < 3; ++step) {
    if (step == 1 && communicator.rank() == failing_rank) spoil(*net);
    ddp.zero_grad();
    ddp.forward(torch::ones({2, 4})).sum().backward();
  }
}

// Fails on rank 1 in the second step alone.
class FailingHook : public CommunicationHook {
 public:
  void reduce(const GradientBucket& bucket, Communicator& communicator) override {
    if (fails) throw std::runtime_error("met a NaN");
    all_reduce(communicator, bucket.values, bucket.op);
  }
  std::string description() const override { return "failing"; }
  bool fails = false;
};

void throw_in_backward(TowerImpl& net) {
  net.first->weight.register_hook(
      [](const at::Tensor&) { throw std::runtime_error("gradient exploded"); });
}

// In docs/library.md, "When a rank fails".
void train_and_declare(Communicator& communicator) {
  try {
    train(
        communicator, [](auto&&...) {}, throw_in_backward);
  } catch (const CommunicatorError&) {
    throw;
  } catch (const std::exception& error) {
    declare_failure(&communicator, error.what());
    throw;
  }
}

void check_seen(const std::function<void(Communicator&)>& body, const std::string& told,
                const std::string& recorded) {
  for (const Wiring wiring : {Wiring::SharedMemory, Wiring::Tcp}) {
    for (const std::string& seen : seen_by_peers(wiring, body)) {
      INFO(name_of(wiring) << ": " << seen);
      CHECK(contains(seen, told));
      CHECK(contains(seen, R"("message": ")" + recorded));
      CHECK_FALSE(contains(seen, "too late"));
    }
  }
}

TEST_CASE("an exception that destroys a wrapped module in backward is told in its own words",
          "[worker][ddp][errors]") {
  check_seen(train_and_declare, "rank 1 failed: gradient exploded", "gradient exploded");
}

TEST_CASE("an exception that destroys a wrapped module and is swallowed does not keep the peers",
          "[worker][ddp][errors]") {
  for (const bool calls : {true, false}) {
    const auto swallow = [&](Communicator& communicator) {
      try {
        train(
            communicator, [](auto&&...) {}, throw_in_backward);
      } catch (const CommunicatorError&) {
        throw;
      } catch (const std::runtime_error&) {
        if (!calls) return;
      }
      communicator.barrier();
    };
    const std::string told = "rank 1 failed: an exception ended its step, and was not declared";
    check_seen(swallow, told, told);
  }
}

}  // namespace

// Its name is what the test looks for in a stack; extern, and never inlined.
[[gnu::noinline]] void skip_layers(Communicator& communicator) {
  train(
      communicator, [](auto&&...) {}, [](TowerImpl& net) { net.skips = true; });
}

namespace {

TEST_CASE("what the library finds wrong on one rank is recorded before the peers hear of it",
          "[worker][ddp][errors]") {
  check_seen(skip_layers, "rank 1: the last backward did not reduce all gradients",
             "rank 1: the last backward did not reduce all gradients");
  for (const std::string& seen : seen_by_peers(Wiring::SharedMemory, skip_layers)) {
    CHECK(contains(seen, "skip_layers"));  // Where it came from.
  }

  check_seen(
      [](Communicator& communicator) {
        const auto hook = std::make_shared<FailingHook>();
        train(
            communicator,
            [&](TowerImpl&, DataParallelOptions& options, Communicator&) {
              options.communication_hook = hook;
            },
            [&](TowerImpl&) { hook->fails = true; });
      },
      "rank 1: the communication hook (failing) failed: met a NaN",
      "rank 1: the communication hook (failing) failed: met a NaN");

  check_seen(
      [](Communicator& communicator) {
        const bool spoils = communicator.rank() == failing_rank;
        train(
            communicator,
            [&](TowerImpl&, DataParallelOptions& options, Communicator&) {
              options.complete_gradient = [spoils](std::size_t, const at::Tensor&) {
                if (spoils) throw std::domain_error("not a number");
              };
            },
            [](TowerImpl&) {});
      },
      "rank 1: not a number", "rank 1: not a number");
}

TEST_CASE("a parameter that was frozen after its module was wrapped is said to be that",
          "[worker][ddp][errors]") {
  const std::string frozen =
      "rank 1: parameter 'first.weight' got no gradient, because it was frozen (requires_grad is "
      "false) after the module was wrapped";
  check_seen(
      [](Communicator& communicator) {
        train(
            communicator, [](auto&&...) {},
            [](TowerImpl& net) { net.first->weight.requires_grad_(false); });
      },
      frozen, frozen);
}

}  // namespace
}  // namespace ddprun::worker
