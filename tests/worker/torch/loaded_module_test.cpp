// Modules whose weights are read from a file after they were wrapped.
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <mutex>
#include <sstream>

#include "tests/testing/catch.h"
#include "tests/worker/torch/small_net.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::worker {
namespace {

SmallNet net_of(std::uint64_t seed) {
  return seeded(seed, [] { return SmallNet(); });
}

// The convolutions' weights with the channels innermost, as a file has them only where they were
// so when it was written.
void use_channels_last(SmallNet& net) {
  for (at::Tensor parameter : net->parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
}

// By one rank at a time: what LibTorch makes of types and names on first use other threads wait
// for where ThreadSanitizer does not see it.
std::mutex files;

void load(SmallNet& net, std::uint64_t seed) {
  const std::lock_guard lock(files);
  std::stringstream file;
  torch::save(net_of(seed), file);
  torch::load(net, file);
}

TEST_CASE("a module that weights are loaded into after it was wrapped trains on", "[worker][ddp]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    SmallNet net = net_of(1), alone = net_of(2);
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    torch::optim::SGD optimizer(net->parameters(), 0.1), optimizer_alone(alone->parameters(), 0.1);
    const Batch batch = random_batch(3, 8), part = batch.part(communicator.rank(), 2);
    loss_of(ddp.forward(part.images), part).backward();

    load(net, 2);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      optimizer_alone.zero_grad();
      loss_of(ddp.forward(part.images), part).backward();
      loss_of(alone->forward(batch.images), batch).backward();
      RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
      optimizer.step();
      optimizer_alone.step();
    }

    for (const at::Tensor& parameter : net->parameters()) {
      const at::Tensor all = all_gather(communicator, parameter.detach());
      RANK_CHECK(at::equal(all[0], all[1]));
    }
  });
}

TEST_CASE("what is accumulated after weights were loaded counts in a step without a batch",
          "[worker][ddp]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    SmallNet net = net_of(1), alone = net_of(2);
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const Batch batch = random_batch(3, 8), part = batch.part(communicator.rank(), 2);
    loss_of(alone->forward(batch.images), batch).backward();

    load(net, 2);
    {
      const auto guard = ddp.no_sync();
      loss_of(ddp.forward(part.images), part).backward();
    }
    ddp.reduce_without_backward();

    RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
  });
}

TEST_CASE("what is loaded in another memory format is reduced element by element",
          "[worker][ddp]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    SmallNet net = net_of(1), alone = net_of(2);
    use_channels_last(net);
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const Batch batch = random_batch(3, 8), part = batch.part(communicator.rank(), 2);
    loss_of(ddp.forward(part.images), part).backward();
    loss_of(alone->forward(batch.images), batch).backward();
    // One rank has to give its next gradient another tensor, and the other has not.
    std::vector<at::Tensor> held;
    if (communicator.rank() == 0) {
      for (const at::Tensor& parameter : net->parameters()) held.push_back(parameter.grad());
    }

    load(net, 2);
    RANK_CHECK(net->conv2->weight.is_contiguous());
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      loss_of(ddp.forward(part.images), part).backward();
      RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
    }

    use_channels_last(net);  // By set_data(), which does not take the hooks away.
    ddp.zero_grad();
    loss_of(ddp.forward(part.images), part).backward();
    RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
  });
}

}  // namespace
}  // namespace ddprun::worker
