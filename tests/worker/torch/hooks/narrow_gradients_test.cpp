// Gradients that travel in 16 bits.
#include "worker/torch/hooks/narrow_gradients.h"

#include <torch/optim/sgd.h>

#include "tests/testing/catch.h"
#include "tests/worker/torch/small_net.h"
#include "worker/torch/hooks/power_sgd.h"

namespace ddprun::worker {
namespace {

DataParallelOptions travelling_as(at::ScalarType type) {
  DataParallelOptions options = options_with_tiny_buckets();
  options.communication_hook = std::make_shared<NarrowGradients>(type);
  return options;
}

std::vector<at::Tensor> own_gradients(int rank) {
  SmallNet net = seeded(1, [] { return SmallNet(); });
  const Batch batch = random_batch(static_cast<std::uint64_t>(rank), 4);
  loss_of(net->forward(batch.images), batch).backward();
  return gradients_of(*net);
}

TEST_CASE("gradients that travel in 16 bits are the average of the rounded ones",
          "[worker][ddp][hook]") {
  const at::ScalarType type = GENERATE(at::kBFloat16, at::kHalf);
  const double ulp = type == at::kHalf ? 1.0 / 1024 : 1.0 / 128;
  const auto first = own_gradients(0), second = own_gradients(1);
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(1, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, travelling_as(type));
    const Batch batch = random_batch(static_cast<std::uint64_t>(communicator.rank()), 4);
    const auto rounded = [&](const at::Tensor& t) { return t.to(type).to(at::kFloat); };
    for (int step = 0; step < 2; ++step) {  // The second one in the settled order of buckets.
      ddp.zero_grad();
      loss_of(ddp.forward(batch.images), batch).backward();

      const auto gradients = gradients_of(*net);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        const at::Tensor expected = rounded((rounded(first[i]) + rounded(second[i])) / 2);
        RANK_CHECK(gradients[i].scalar_type() == at::kFloat);
        // The kernels' own rounding may move a value over the border between two numbers.
        RANK_CHECK(at::allclose(gradients[i], expected, ulp, 1e-4));
        RANK_CHECK(at::equal(gradients[i], rounded(gradients[i])));
      }
    }
  });
}

TEST_CASE("with gradients in bfloat16 weights stay equal on all ranks and near those without",
          "[worker][ddp][hook]") {
  const auto train = [](bool bfloat16) {
    std::vector<std::vector<at::Tensor>> weights(2);
    run_ranks_well(2, [&](ThreadCommunicator& communicator) {
      SmallNet net = seeded(1, [] { return SmallNet(); });
      DistributedDataParallel ddp(
          net, communicator, bfloat16 ? travelling_as(at::kBFloat16) : options_with_tiny_buckets());
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int step = 0; step < 5; ++step) {
        const auto seed = static_cast<std::uint64_t>(2 * step + communicator.rank());
        const Batch batch = random_batch(seed, 4);
        ddp.zero_grad();
        loss_of(ddp.forward(batch.images), batch).backward();
        optimizer.step();
      }
      weights[static_cast<std::size_t>(communicator.rank())] = copies(net->parameters());
    });
    return weights;
  };
  const auto rounded = train(true), exact = train(false);
  CHECK(all_equal(rounded[0], rounded[1]));
  CHECK_FALSE(all_equal(rounded[0], exact[0]));
  CHECK(all_close(rounded[0], exact[0], 5e-3));
}

TEST_CASE("gradients of double travel as they are", "[worker][ddp][hook]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    torch::nn::Linear net = seeded(1, [] { return torch::nn::Linear(3, 2); });
    net->to(at::kDouble);
    DistributedDataParallel ddp(net, communicator, travelling_as(at::kBFloat16));
    ddp.forward(torch::full({1, 3}, 1.0 / 3, at::kDouble)).sum().backward();
    RANK_CHECK(at::allclose(net->weight.grad(), torch::full({2, 3}, 1.0 / 3, at::kDouble), 1e-12));
  });
}

TEST_CASE("a hook may outlive its communicator, and serve with another one",
          "[worker][ddp][hook]") {
  const bool thin = GENERATE(false, true);
  const auto make = [&]() -> std::shared_ptr<CommunicationHook> {
    if (!thin) return std::make_shared<NarrowGradients>(at::kBFloat16);
    return std::make_shared<PowerSgd>(PowerSgdOptions{.rank = 1, .start_step = 0});
  };
  std::vector<std::shared_ptr<CommunicationHook>> hooks{make(), make()};
  for (int attempt = 0; attempt < 2; ++attempt) {
    // Which also finds memory of the communicator that somebody holds at its end.
    run_ranks_well(2, [&](ThreadCommunicator& communicator) {
      SmallNet net = seeded(1, [] { return SmallNet(); });
      DataParallelOptions options = options_with_tiny_buckets();
      options.communication_hook = hooks[static_cast<std::size_t>(communicator.rank())];
      DistributedDataParallel ddp(net, communicator, options);
      const Batch batch = random_batch(static_cast<std::uint64_t>(communicator.rank()), 4);
      loss_of(ddp.forward(batch.images), batch).backward();
    });
  }
}

TEST_CASE("gradients travel in 16 bits of two kinds alone", "[worker][ddp][hook]") {
  CHECK_THROWS_AS(NarrowGradients(at::kFloat), std::invalid_argument);
  CHECK_THROWS_AS(NarrowGradients(at::kInt), std::invalid_argument);
}

}  // namespace
}  // namespace ddprun::worker
