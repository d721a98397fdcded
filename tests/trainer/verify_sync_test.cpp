// Ranks whose models have gone apart, in a world of threads: found, named, and ended everywhere.
#include "trainer/verify_sync.h"

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "tests/worker/torch/small_net.h"
#include "trainer/sgd.h"

namespace ddprun::trainer {
namespace {

using worker::run_ranks;
using worker::ThreadCommunicator;

ComparedTensors tensors_of(const worker::SmallNet& net, const Sgd& optimizer) {
  ComparedTensors tensors;
  for (const auto& item : net->named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& [name, buffer] : optimizer.momentum_buffers()) {
    tensors.emplace_back("momentum of " + name, buffer);
  }
  return tensors;
}

// Trains three steps on `ranks` ranks, with `damage` in the middle of them; what each rank throws.
std::vector<std::string> errors_after(
    int ranks, const std::function<void(int rank, worker::SmallNet&, Sgd&)>& damage) {
  const auto errors = run_ranks(ranks, [&](ThreadCommunicator& communicator) {
    worker::SmallNet net = worker::seeded(1, [] { return worker::SmallNet(); });
    worker::DistributedDataParallel ddp(net, communicator);
    std::vector<std::pair<std::string, torch::Tensor>> parameters;
    for (const auto& item : net->named_parameters())
      parameters.emplace_back(item.key(), item.value());
    Sgd optimizer(parameters, {});
    for (int step = 1; step <= 3; ++step) {
      const worker::Batch batch =
          worker::random_batch(static_cast<std::uint64_t>(10 * step + communicator.rank()), 4);
      ddp.zero_grad();
      worker::loss_of(ddp.forward(batch.images), batch).backward();
      optimizer.step(0.1);
      if (step == 2) damage(communicator.rank(), net, optimizer);
      verify_sync(communicator, tensors_of(net, optimizer), torch::kCPU, step);
    }
  });
  std::vector<std::string> messages;
  for (const auto& error : errors) messages.push_back(worker::message_of<TrainingError>(error));
  return messages;
}

TEST_CASE("ranks that train together stay equal", "[trainer][verify_sync]") {
  const auto messages = errors_after(3, [](int, worker::SmallNet&, Sgd&) {});
  CHECK(messages == std::vector<std::string>(3, "none"));
}

TEST_CASE("a damaged weight ends all ranks with the rank and the tensor",
          "[trainer][verify_sync]") {
  const auto messages = errors_after(3, [](int rank, worker::SmallNet& net, Sgd&) {
    const torch::NoGradGuard no_grad;
    if (rank == 1) net->conv2->weight[3][2][1][0] += 1e-6;
  });
  for (const std::string& message : messages) {
    CHECK(contains(message, "after step 2: rank 1 first in 'conv2.weight' (all others agree)"));
  }
}

TEST_CASE("of two ranks that differ both are named", "[trainer][verify_sync]") {
  const auto messages = errors_after(2, [](int rank, worker::SmallNet& net, Sgd&) {
    const torch::NoGradGuard no_grad;
    if (rank == 0) net->fc->bias.add_(1);
  });
  for (const std::string& message : messages) {
    CHECK(contains(message, "rank 0 first in 'fc.bias', rank 1 first in 'fc.bias' (no majority"));
  }
}

TEST_CASE("damaged momentum is found though the weights are still equal",
          "[trainer][verify_sync]") {
  const auto messages = errors_after(3, [](int rank, worker::SmallNet&, Sgd& optimizer) {
    if (rank == 2) optimizer.momentum_buffers()[1].second.mul_(1.01);
  });
  for (const std::string& message : messages) {
    CHECK(contains(message, "rank 2 first in 'momentum of conv1.bias' (all others agree)"));
  }
}

}  // namespace
}  // namespace ddprun::trainer
