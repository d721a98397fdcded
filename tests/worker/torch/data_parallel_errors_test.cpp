// Dead peers, exceptions in backward, and buffers: what must neither hang nor go unnoticed.
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/embedding.h>

#include <mutex>
#include <semaphore>

#include "tests/testing/catch.h"
#include "tests/worker/communicator_cluster.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::worker {
namespace {

using torch::nn::BatchNorm1d;
using torch::nn::Linear;

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    first = register_module("first", Linear(4, 6));
    norm = register_module("norm", BatchNorm1d(6));
    last = register_module("last", Linear(6, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return last(norm(first(x)).relu()).pow(2).mean(); }
  Linear first{nullptr}, last{nullptr};
  BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Normed);

Normed normed_net() {
  return seeded(1, [] { return Normed(); });
}

at::Tensor input(int rank) {
  return seeded(10 + static_cast<std::uint64_t>(rank), [] { return torch::randn({8, 4}); });
}

DataParallelOptions tiny() {
  DataParallelOptions options;
  options.buckets = {16, 64, 16};
  return options;
}

class LossExploded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

TEST_CASE("an exception in one rank's backward reaches its caller, and its peer is released",
          "[worker][ddp][errors]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    Normed net = normed_net();
    DistributedDataParallel ddp(net, communicator, tiny());
    const at::Tensor loss = ddp.forward(input(communicator.rank()));
    if (communicator.rank() == 0) {
      net->first->weight.register_hook(
          [](const at::Tensor&) { throw LossExploded("not a number"); });
    }
    loss.backward();
  });

  CHECK(message_of<LossExploded>(errors[0]) == "not a number");
  const std::string peer = message_of<CommunicatorError>(errors[1]);
  CHECK(peer.find("rank 0: the last backward did not reduce all gradients") != std::string::npos);
}

TEST_CASE("a forward after a backward that failed says so", "[worker][ddp][errors]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    Normed net = normed_net();
    DistributedDataParallel ddp(net, communicator, tiny());
    net->first->weight.register_hook([](const at::Tensor&) { throw LossExploded("nan"); });
    try {
      ddp.forward(input(communicator.rank())).backward();
    } catch (const LossExploded&) {
    }
    ddp.forward(input(communicator.rank()));
  });

  const std::string message = message_of<UnreducedGradients>(errors[0] ? errors[0] : errors[1]);
  CHECK(message.find("if backward ended with an exception") != std::string::npos);
}

TEST_CASE("a peer that dies in the middle of backward ends it with CommunicatorError",
          "[worker][ddp][errors]") {
  for (const int reductions_before_death : {0, 1, 3, 7}) {
    const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
      Normed net = normed_net();
      DistributedDataParallel ddp(net, communicator, tiny());
      int reductions = 0;
      if (communicator.rank() == 1) {
        communicator.before_all_reduce = [&] {
          if (reductions++ == reductions_before_death) {
            communicator.abort("rank 1 is gone");
            throw CommunicatorError("rank 1 is gone");
          }
        };
      }
      for (int step = 0; step < 5; ++step) ddp.forward(input(communicator.rank())).backward();
    });

    CHECK(message_of<CommunicatorError>(errors[0]) == "rank 1 is gone");
    CHECK(message_of<CommunicatorError>(errors[1]) == "rank 1 is gone");
  }
}

TEST_CASE("a wrapper that goes while its reductions are under way does not hang",
          "[worker][ddp][errors]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    Normed net = normed_net();
    DistributedDataParallel ddp(net, communicator, tiny());
    const at::Tensor loss = ddp.forward(input(communicator.rank()));
    if (communicator.rank() == 1) return;  // Leaves without taking part; rank 0 waits for it.
    net->first->weight.register_hook([](const at::Tensor&) { throw LossExploded("late"); });
    loss.backward();
  });

  CHECK(message_of<LossExploded>(errors[0]) == "late");
}

TEST_CASE("a backward that lacked gradients leaves no reduction under way when it returns",
          "[worker][ddp][errors]") {
  std::counting_semaphore<> at_its_end(0);
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    Normed net = normed_net();
    DistributedDataParallel ddp(net, communicator, tiny());
    const at::Tensor output = net->last(torch::ones({2, 6}));
    if (communicator.rank() == 0) {
      // Ahead of the reducer's own: the peer joins in when nothing is left of backward but that.
      output.register_hook([&](const at::Tensor&) {
        torch::autograd::Engine::get_default_engine().queue_callback([&] { at_its_end.release(); });
      });
    } else {
      RANK_CHECK(acquire(at_its_end, 1));
    }
    output.sum().backward();

    RANK_CHECK(reduction_queue_of(communicator, at::kCPU)->idle());
    at::Tensor own = torch::ones({3});
    all_reduce(communicator, own, ReduceOp::Sum);
    RANK_CHECK(at::equal(own, torch::full({3}, 2.0)));
  });
}

TEST_CASE("running statistics become rank 0's before evaluation and not before",
          "[worker][ddp][buffers]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    Normed net = normed_net();
    DistributedDataParallel ddp(net, communicator, tiny());
    for (int step = 0; step < 3; ++step) ddp.forward(input(communicator.rank())).backward();
    at::Tensor all = all_gather(communicator, net->norm->running_mean);
    RANK_CHECK(!at::equal(all[0], all[1]));
    const at::Tensor rank0 = all[0].clone();

    ddp.eval();
    {
      const at::NoGradGuard no_grad;
      ddp.forward(input(communicator.rank()));
    }

    all = all_gather(communicator, net->norm->running_mean);
    RANK_CHECK(at::equal(all[0], rank0));
    RANK_CHECK(at::equal(all[1], rank0));
    RANK_CHECK(net->norm->num_batches_tracked.item<std::int64_t>() == 3);
  });
}

struct CountingImpl : torch::nn::Module {
  CountingImpl() {
    linear = register_module("linear", Linear(4, 2));
    scale = register_buffer("scale", torch::ones({1}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor used = scale.clone();
    scale.add_(x.abs().mean().detach());
    return linear(x * used).pow(2).mean();
  }
  Linear linear{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(Counting);

TEST_CASE("other buffers become rank 0's before every forward, except within no_sync",
          "[worker][ddp][buffers]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    const int rank = communicator.rank();
    Counting net = seeded(1, [] { return Counting(); });
    Counting alone = seeded(1, [] { return Counting(); });
    DistributedDataParallel ddp(net, communicator, tiny());
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp.forward(input(rank)).backward();

      // Both ranks' parts with the buffer as rank 0 has it, whose own change to it stays.
      alone->zero_grad();
      const at::Tensor before = alone->scale.clone();
      for (const int part : {1, 0}) {
        alone->scale.copy_(before);
        (alone->forward(input(part)) / 2).backward();
      }
      RANK_CHECK(at::allclose(net->linear->weight.grad(), alone->linear->weight.grad()));
    }
    ddp.synchronize_buffers();
    RANK_CHECK(at::allclose(net->scale, alone->scale));

    const auto guard = ddp.no_sync();
    for (int step = 0; step < 2; ++step) ddp.forward(input(rank));
    RANK_CHECK(at::allclose(net->scale, alone->scale + 2 * input(rank).abs().mean()));
  });
}

TEST_CASE("a gradient that comes twice before the reduction has ended is an error",
          "[worker][ddp][errors]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    Normed net = normed_net();
    DistributedDataParallel ddp(net, communicator, tiny());
    // Part of the parameters only, twice: the reduction cannot end between the two.
    for (int part = 0; part < 2; ++part) net->last(torch::ones({2, 6})).sum().backward();
  });

  // Whoever is later may hear of the other one's end before it comes to its own second part.
  std::string messages;
  for (const auto& error : errors) {
    if (error) messages += message_of<UnreducedGradients>(error);
  }
  CHECK(messages.find("twice in one reduction") != std::string::npos);
}

TEST_CASE("a sparse gradient is refused with the parameter's name", "[worker][ddp][errors]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    torch::nn::Embedding net(torch::nn::EmbeddingOptions(5, 3).sparse(true));
    DistributedDataParallel ddp(net, communicator);
    ddp.forward(torch::tensor({1, 2})).sum().backward();
  });

  const std::string message = message_of<std::invalid_argument>(errors[0]);
  CHECK(message.find("'weight'") != std::string::npos);
}

}  // namespace
}  // namespace ddprun::worker
