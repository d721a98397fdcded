// Ranks whose models have gone apart, in a world of threads: found, named, and ended everywhere.
#include "trainer/consistency/verify_sync.h"

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "tests/worker/torch/small_net.h"
#include "trainer/optimizer/sgd.h"

namespace ddprun::trainer {
namespace {

using worker::run_ranks;
using worker::ThreadCommunicator;

// A network with batch normalisation.
struct NormNetImpl : torch::nn::Module {
  NormNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 5, 3)));
    bn = register_module("bn", torch::nn::BatchNorm2d(5));
  }
  torch::Tensor forward(const torch::Tensor& x) { return bn(conv(x)).relu().mean({2, 3}); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d bn{nullptr};
};
TORCH_MODULE(NormNet);

Sgd optimizer_for(const torch::nn::Module& net) {
  std::vector<std::pair<std::string, torch::Tensor>> parameters;
  for (const auto& item : net.named_parameters()) parameters.emplace_back(item.key(), item.value());
  return Sgd(parameters, {});
}

// One step on the batch that `seed` makes.
template <class Ddp>
void train_step(Ddp& ddp, Sgd& optimizer, int seed) {
  const worker::Batch batch = worker::random_batch(static_cast<std::uint64_t>(seed), 4);
  ddp.zero_grad();
  worker::loss_of(ddp.forward(batch.images), batch).backward();
  optimizer.step(0.1);
}

// Trains three steps on `ranks` ranks, with `damage` in the middle of them; what each rank throws.
std::vector<std::string> errors_after(
    int ranks, const std::function<void(int rank, worker::SmallNet&, Sgd&)>& damage) {
  const auto errors = run_ranks(ranks, [&](ThreadCommunicator& communicator) {
    worker::SmallNet net = worker::seeded(1, [] { return worker::SmallNet(); });
    worker::DistributedDataParallel ddp(net, communicator);
    Sgd optimizer = optimizer_for(*net);
    for (int step = 1; step <= 3; ++step) {
      train_step(ddp, optimizer, 10 * step + communicator.rank());
      if (step == 2) damage(communicator.rank(), net, optimizer);
      verify_sync(communicator, tensors_to_compare(*net, optimizer, nullptr, true), torch::kCPU,
                  step);
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

// Two ranks train three steps on batches of their own, with --ema; what each throws. `damage` comes
// before the comparison.
std::vector<std::string> errors_with_statistics(
    bool compared, const std::function<void(int rank, NormNet&)>& damage) {
  const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
    NormNet net = worker::seeded(1, [] { return NormNet(); });
    worker::DistributedDataParallel ddp(net, communicator);
    Sgd optimizer = optimizer_for(*net);
    ModelAverage average(*net, 0.5);
    for (int step = 1; step <= 3; ++step) {
      train_step(ddp, optimizer, 10 * step + communicator.rank());
      average.update();
    }
    damage(communicator.rank(), net);
    const torch::Tensor before = net->bn->running_mean.clone();
    verify_sync(communicator, tensors_to_compare(*net, optimizer, &average, compared), torch::kCPU,
                3);
    if (!torch::equal(net->bn->running_mean, before)) throw std::logic_error("changed");
  });
  std::vector<std::string> messages;
  for (const auto& error : errors) messages.push_back(worker::message_of<TrainingError>(error));
  return messages;
}

TEST_CASE("running statistics of batches of their own are no difference, and stay as they are",
          "[trainer][verify_sync]") {
  CHECK(errors_with_statistics(false, [](int, NormNet&) {}) == std::vector<std::string>(2, "none"));
}

TEST_CASE("running statistics that must be equal are compared", "[trainer][verify_sync]") {
  for (const std::string& message : errors_with_statistics(true, [](int, NormNet&) {})) {
    CHECK(contains(message, "rank 0 first in 'bn.running_mean', rank 1 first in"));
  }
}

TEST_CASE("a scale and a count of batch normalisation are compared in any case",
          "[trainer][verify_sync]") {
  const auto scale = [](int rank, NormNet& net) {
    const torch::NoGradGuard guard;
    if (rank == 1) net->bn->weight.mul_(2);
  };
  const auto count = [](int rank, NormNet& net) {
    if (rank == 0) net->bn->num_batches_tracked.add_(1);
  };
  for (const std::string& message : errors_with_statistics(false, scale)) {
    CHECK(contains(message, "rank 1 first in 'bn.weight'"));
  }
  for (const std::string& message : errors_with_statistics(false, count)) {
    CHECK(contains(message, "rank 0 first in 'bn.num_batches_tracked'"));
  }
}

}  // namespace
}  // namespace ddprun::trainer
