// DistributedDataParallel against the same computation in one process: what training computes.
#include "worker/torch/distributed_data_parallel.h"

#include <torch/optim/sgd.h>

#include "tests/testing/catch.h"
#include "tests/worker/torch/small_net.h"
#include "tests/worker/torch/thread_communicator.h"

namespace ddprun::worker {
namespace {

TEST_CASE("two ranks with half a batch each compute the gradients of the whole batch",
          "[worker][ddp]") {
  const Batch batch = random_batch(1, 8);
  SmallNet alone = seeded(100, [] { return SmallNet(); });
  loss_of(alone->forward(batch.images), batch).backward();

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    // Other weights on every rank: the constructor must make them rank 0's.
    SmallNet net =
        seeded(100 + static_cast<std::uint64_t>(communicator.rank()), [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const Batch part = batch.part(communicator.rank(), 2);

    loss_of(ddp->forward(part.images), part).backward();

    RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
    RANK_CHECK(ddp.bucket_count() > 2);
  });
}

TEST_CASE("all ranks hold the same weights, bit for bit, after steps of SGD", "[worker][ddp]") {
  constexpr int world = 3;
  std::vector<std::vector<at::Tensor>> weights(world);
  SmallNet alone = seeded(100, [] { return SmallNet(); });
  torch::optim::SGD alone_optimizer(alone->parameters(),
                                    torch::optim::SGDOptions(0.1).momentum(0.9));

  run_ranks_well(world, [&](ThreadCommunicator& communicator) {
    const auto rank = static_cast<std::uint64_t>(communicator.rank());
    SmallNet net = seeded(100 + rank, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (std::uint64_t step = 0; step < 5; ++step) {
      const Batch part = random_batch(step, 9).part(communicator.rank(), world);
      if (step % 2 == 0) {
        ddp.zero_grad(/*set_to_none=*/step % 4 == 0);
      } else {
        optimizer.zero_grad(/*set_to_none=*/step % 3 == 0);
      }
      loss_of(ddp.forward(part.images), part).backward();
      optimizer.step();
    }
    weights[rank] = copies(net->parameters());
  });
  for (std::uint64_t step = 0; step < 5; ++step) {
    const Batch batch = random_batch(step, 9);
    alone_optimizer.zero_grad();
    loss_of(alone->forward(batch.images), batch).backward();
    alone_optimizer.step();
  }

  CHECK(all_equal(weights[0], weights[1]));
  CHECK(all_equal(weights[0], weights[2]));
  CHECK(all_close(weights[0], copies(alone->parameters())));
}

TEST_CASE("within no_sync gradients stay local, and the next backward reduces their sum",
          "[worker][ddp]") {
  const Batch batch = random_batch(4, 16);
  SmallNet alone = seeded(8, [] { return SmallNet(); });
  for (int half = 0; half < 2; ++half) {
    const Batch part = batch.part(half, 2);
    loss_of(alone->forward(part.images), part).backward();
  }

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(8, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    for (int repeat = 0; repeat < 2; ++repeat) {
      ddp.zero_grad();
      const Batch first = batch.part(0, 2).part(communicator.rank(), 2);
      const Batch second = batch.part(1, 2).part(communicator.rank(), 2);
      {
        const auto guard = ddp.no_sync();
        loss_of(ddp.forward(first.images), first).backward();
      }
      const at::Tensor local = net->fc->bias.grad().clone();
      const at::Tensor gathered = all_gather(communicator, local);
      RANK_CHECK(!at::allclose(gathered[0], gathered[1]));
      loss_of(ddp.forward(second.images), second).backward();
      RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
    }
  });
}

TEST_CASE("guards of no_sync may end in any order", "[worker][ddp]") {
  const Batch batch = random_batch(4, 16);
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(8, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const Batch own = batch.part(communicator.rank(), 2);
    const auto is_equal_everywhere = [&] {
      const at::Tensor all = all_gather(communicator, net->fc->bias.grad().clone());
      return at::equal(all[0], all[1]);
    };
    for (int repeat = 0; repeat < 2; ++repeat) {
      ddp.zero_grad();
      std::unique_ptr<DistributedDataParallelBase::NoSync> guard;
      for (int micro = 0; micro < 3; ++micro) {
        // The new one is there before the old one goes.
        guard = micro < 2 ? std::make_unique<DistributedDataParallelBase::NoSync>(ddp) : nullptr;
        loss_of(ddp.forward(own.images), own).backward();
        RANK_CHECK(is_equal_everywhere() == (micro == 2));
      }
    }
  });
}

TEST_CASE("a second backward without zero_grad adds the averages", "[worker][ddp]") {
  const Batch batch = random_batch(5, 8);

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(9, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const Batch part = batch.part(communicator.rank(), 2);
    loss_of(ddp.forward(part.images), part).backward();
    std::vector<at::Tensor> twice = gradients_of(*net);
    for (at::Tensor& gradient : twice) gradient.mul_(2);

    loss_of(ddp.forward(part.images), part).backward();

    RANK_CHECK(all_close(gradients_of(*net), twice));
  });
}

TEST_CASE("an uneven last batch counts per rank, not per sample, as in PyTorch", "[worker][ddp]") {
  const Batch batch = random_batch(6, 8);
  SmallNet alone = seeded(10, [] { return SmallNet(); });
  const Batch large{batch.images.narrow(0, 0, 6), batch.labels.narrow(0, 0, 6)};
  const Batch little{batch.images.narrow(0, 6, 2), batch.labels.narrow(0, 6, 2)};
  ((loss_of(alone->forward(large.images), large) + loss_of(alone->forward(little.images), little)) /
   2)
      .backward();

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(10, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const Batch& part = communicator.rank() == 0 ? large : little;
    loss_of(ddp.forward(part.images), part).backward();
    RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
  });
}

TEST_CASE("a rank without a batch takes part with zeros", "[worker][ddp]") {
  const Batch batch = random_batch(6, 4);
  SmallNet alone = seeded(10, [] { return SmallNet(); });
  (loss_of(alone->forward(batch.images), batch) / 2).backward();

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(10, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      if ((communicator.rank() + step) % 2 == 0) {
        loss_of(ddp.forward(batch.images), batch).backward();
      } else {
        ddp.reduce_without_backward();
      }
      RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
    }
  });
}

// The loop of docs/library.md.
TEST_CASE("ranks that do not know how many batches the others have ask before each step",
          "[worker][ddp]") {
  std::vector<std::vector<at::Tensor>> weights(3);
  run_ranks_well(3, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(10, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const int batches = 2 * communicator.rank();
    int steps = 0;
    for (;; ++steps) {
      std::int32_t anybody = steps < batches ? 1 : 0;
      communicator.all_reduce(&anybody, 1, DataType::Int32, ReduceOp::Max, nullptr);
      if (anybody == 0) break;
      ddp.zero_grad();
      if (steps < batches) {
        const Batch batch = random_batch(static_cast<std::uint64_t>(steps), 4);
        loss_of(ddp.forward(batch.images), batch).backward();
      } else {
        ddp.reduce_without_backward();
      }
      optimizer.step();
    }
    RANK_CHECK(steps == 4);
    weights[static_cast<std::size_t>(communicator.rank())] = copies(net->parameters());
  });
  CHECK(all_equal(weights[0], weights[2]));
  CHECK(all_equal(weights[1], weights[2]));
}

// The loop that follows a rank's last batch has no reason to clear what it does not add to.
TEST_CASE("what the last step has left is not part of a step without a batch", "[worker][ddp]") {
  const Batch batch = random_batch(6, 4);
  SmallNet alone = seeded(10, [] { return SmallNet(); });
  (loss_of(alone->forward(batch.images), batch) / 2).backward();

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(10, [] { return SmallNet(); });
    DataParallelOptions options = options_with_tiny_buckets();
    for (const bool sum : {false, true}) {
      options.sum = sum;
      DistributedDataParallel ddp(net, communicator, options);
      ddp.zero_grad();
      loss_of(ddp.forward(batch.images), batch).backward();
      for (at::Tensor& gradient : gradients_of(*net)) gradient.mul_(2);  // As clipping does.
      for (int step = 0; step < 2; ++step) {
        if (communicator.rank() == 0) {
          ddp.zero_grad();
          (loss_of(ddp.forward(batch.images), batch) / (sum ? 2 : 1)).backward();
        } else {
          ddp.reduce_without_backward();
        }
        RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
      }
    }
  });
}

TEST_CASE("what a rank has accumulated counts in a step for which it has no batch",
          "[worker][ddp]") {
  const Batch batch = random_batch(6, 4);
  SmallNet alone = seeded(10, [] { return SmallNet(); });
  (loss_of(alone->forward(batch.images), batch) * 1.5).backward();

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(10, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      {
        const auto accumulating = ddp.no_sync();
        loss_of(ddp.forward(batch.images), batch).backward();
      }
      if (communicator.rank() == 0) {
        loss_of(ddp.forward(batch.images), batch).backward();
      } else {
        ddp.reduce_without_backward();
      }
      RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
    }
  });
}

}  // namespace
}  // namespace ddprun::worker
