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

TEST_CASE("a module that is none is refused", "[worker][ddp][errors]") {
  ThreadWorld world(1);
  ThreadCommunicator communicator(world, 0);
  const std::shared_ptr<torch::nn::LinearImpl> none;
  CHECK_THROWS_AS(DistributedDataParallel(none, communicator), std::invalid_argument);
}

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
  // In the words of the exception, not in those of a wrapper that it has destroyed.
  CHECK(message_of<CommunicatorError>(errors[1]) == "a peer died: not a number");
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
  std::counting_semaphore<> throws(0);
  const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
    Normed net = normed_net();
    DistributedDataParallel ddp(net, communicator, tiny());
    const at::Tensor loss = ddp.forward(input(communicator.rank()));
    if (communicator.rank() == 1) {  // Leaves without taking part; rank 0 waits for it until then.
      RANK_CHECK(acquire(throws, 1));
      return;
    }
    net->first->weight.register_hook([&](const at::Tensor&) {
      throws.release();
      throw LossExploded("late");
    });
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

TEST_CASE("training goes on after a validation in InferenceMode", "[worker][ddp][buffers]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    Normed net = normed_net();
    DistributedDataParallel ddp(net, communicator, tiny());
    const at::Tensor x = input(communicator.rank());
    for (int round = 0; round < 2; ++round) {
      ddp.train();
      ddp.forward(x).backward();
      ddp.eval();
      {
        const c10::InferenceMode inference;
        ddp.forward(x);
      }
      ddp.train();
      ddp.forward(x).backward();
      ddp.synchronize_buffers();
      const auto guard = ddp.no_sync();
      ddp.forward(x).backward();
    }
    ddp.synchronize_buffers();
    const at::Tensor all = all_gather(communicator, net->norm->running_mean);
    RANK_CHECK(at::equal(all[0], all[1]));
  });
}

struct GapsImpl : torch::nn::Module {
  explicit GapsImpl(const at::Tensor& state) {
    weight = register_parameter("weight", torch::randn({4, 8}).slice(1, 0, 4).detach());
    scale = register_buffer("scale", state);
  }
  at::Tensor forward(const at::Tensor& x) {
    scale.add_(x.mean().detach());
    return (x.mm(weight) * scale).pow(2).mean();
  }
  at::Tensor weight, scale;
};
TORCH_MODULE(Gaps);

TEST_CASE("parameters and buffers with gaps in memory become rank 0's", "[worker][ddp][buffers]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    Gaps net = seeded(static_cast<std::uint64_t>(communicator.rank()), [] {
      return Gaps(torch::randn({4, 3}).select(1, 1));
    });
    DistributedDataParallel ddp(net, communicator, tiny());
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      ddp.forward(input(communicator.rank())).backward();
    }
    ddp.synchronize_buffers();
    for (const at::Tensor& tensor : {net->weight.detach(), net->weight.grad(), net->scale}) {
      const at::Tensor all = all_gather(communicator, tensor.contiguous());
      RANK_CHECK(at::equal(all[0], all[1]));
    }
    RANK_CHECK(net->weight.stride(0) == 8);
  });
}

TEST_CASE("a buffer whose elements share memory is refused by its name", "[worker][ddp][errors]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    Gaps net(torch::ones({1}).expand({4}));
    DistributedDataParallel ddp(net, communicator, tiny());
  });

  for (const auto& error : errors) {
    CHECK(message_of<std::invalid_argument>(error).find("'scale' has several elements in one") !=
          std::string::npos);
  }
}

TEST_CASE("a parameter that was converted or unfrozen after its module was wrapped is an error",
          "[worker][ddp][errors]") {
  const auto train_after = [](const std::function<void(NormedImpl&)>& change) {
    const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
      Normed net = normed_net();
      net->first->bias.set_requires_grad(false);
      DistributedDataParallel ddp(net, communicator, tiny());
      for (int step = 0; step < 2; ++step) ddp.forward(input(communicator.rank())).backward();
      change(*net);
      ddp.forward(input(communicator.rank()));
    });
    // Who is later hears the other one's.
    return message_of<UnreducedGradients>(errors[0]) + message_of<UnreducedGradients>(errors[1]);
  };

  CHECK(train_after([](NormedImpl& net) {
          net.last->to(torch::kDouble);
        }).find("parameter 'last.weight' was moved or converted") != std::string::npos);
  CHECK(train_after([](NormedImpl& net) {
          net.first->bias.set_requires_grad(true);
        }).find("parameter 'first.bias' requires a gradient") != std::string::npos);
  CHECK(train_after([](NormedImpl& net) {
          net.last->to(torch::kDouble);
          net.to(torch::kFloat);
          net.last->bias.set_requires_grad(false);
          net.last->bias.set_requires_grad(true);
        }) == "nonenone");
}

// Computes `inner` again in backward, as checkpointing does.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor&, NormedImpl* net) {
    context->save_for_backward({x});
    context->saved_data["net"] = reinterpret_cast<std::int64_t>(net);
    return net->last(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    auto* const net = reinterpret_cast<NormedImpl*>(context->saved_data["net"].toInt());
    {
      const at::AutoGradMode with_graph(true);
      net->last(x).backward(gradients[0]);
    }
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

struct CheckpointedImpl : NormedImpl {
  at::Tensor forward(const at::Tensor& x) {
    return Checkpoint::apply(first(x).relu(), torch::ones({1}).requires_grad_(),
                             static_cast<NormedImpl*>(this))
        .pow(2)
        .mean();
  }
};

TEST_CASE("a backward within backward is refused where its end would be taken for the step's",
          "[worker][ddp][errors]") {
  const auto train = [](bool find_unused, bool static_graph, bool sum) {
    const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
      const auto net = seeded(1, [] { return std::make_shared<CheckpointedImpl>(); });
      for (at::Tensor& parameter : net->norm->parameters()) parameter.requires_grad_(false);
      DataParallelOptions options = tiny();
      options.find_unused_parameters = find_unused;
      options.static_graph = static_graph;
      options.sum = sum;
      DistributedDataParallel<CheckpointedImpl> ddp(net, communicator, options);
      for (int step = 0; step < 2; ++step) {
        ddp.zero_grad();
        ddp.forward(input(communicator.rank())).backward();
      }
    });
    return message_of<UnreducedGradients>(errors[0] ? errors[0] : errors[1]);
  };

  CHECK(train(false, false, true) == "none");
  CHECK(train(true, false, false) == "none");
  for (const auto& message : {train(true, false, true), train(false, true, false)}) {
    CHECK(message.find("a backward within backward (checkpointing) ended before") !=
          std::string::npos);
  }
}

// Its checkpointed part twice, with the same parameters.
struct CheckpointedTwiceImpl : NormedImpl {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor marker = torch::ones({1}).requires_grad_();
    const at::Tensor hidden = first(x).relu();
    NormedImpl* const net = this;
    return (Checkpoint::apply(hidden, marker, net) + Checkpoint::apply(hidden * 2, marker, net))
        .pow(2)
        .mean();
  }
};

std::shared_ptr<CheckpointedTwiceImpl> checkpointed_twice() {
  const auto net = seeded(1, [] { return std::make_shared<CheckpointedTwiceImpl>(); });
  for (at::Tensor& parameter : net->norm->parameters()) parameter.requires_grad_(false);
  return net;
}

TEST_CASE("checkpointed parts that share a parameter are reduced after a backward in no_sync",
          "[worker][ddp]") {
  const auto alone = checkpointed_twice();
  for (const int rank : {0, 1}) (alone->forward(input(rank)) / 2).backward();
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    const auto net = checkpointed_twice();
    DistributedDataParallel<CheckpointedTwiceImpl> ddp(net, communicator, tiny());
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      const at::Tensor loss = ddp.forward(input(communicator.rank()));
      {
        const auto guard = ddp.no_sync();
        loss.backward();
      }
      ddp.reduce_without_backward();
      RANK_CHECK(at::allclose(net->first->weight.grad(), alone->first->weight.grad()));
      RANK_CHECK(at::allclose(net->last->weight.grad(), alone->last->weight.grad()));
    }
  });

  const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
    DistributedDataParallel<CheckpointedTwiceImpl> ddp(checkpointed_twice(), communicator, tiny());
    ddp.forward(input(communicator.rank())).backward();
  });
  CHECK((message_of<UnreducedGradients>(errors[0]) + message_of<UnreducedGradients>(errors[1]))
            .find("within no_sync() and call reduce_without_backward() after") !=
        std::string::npos);
}

struct MaskedImpl : torch::nn::Module {
  explicit MaskedImpl(const at::Tensor& state) {
    linear = register_module("linear", Linear(4, 2));
    mask = register_buffer("mask", state);
  }
  at::Tensor forward(const at::Tensor& x) { return linear(at::mm(mask, x)).pow(2).mean(); }
  Linear linear{nullptr};
  at::Tensor mask;
};
TORCH_MODULE(Masked);

TEST_CASE("sparse buffers are left alone, and refused where they would have to be sent",
          "[worker][ddp][buffers]") {
  for (const bool by_rows : {false, true}) {
    const auto make = [&] {
      const at::Tensor eye = torch::eye(8);
      return seeded(1, [&] { return Masked(by_rows ? eye.to_sparse_csr() : eye.to_sparse()); });
    };
    Masked alone = make();
    for (const int rank : {0, 1}) (alone->forward(input(rank)) / 2).backward();
    run_ranks_well(2, [&](ThreadCommunicator& communicator) {
      Masked net = make();
      DataParallelOptions options = tiny();
      options.broadcast_buffers = options.init_sync = false;
      DistributedDataParallel ddp(net, communicator, options);
      ddp.forward(input(communicator.rank())).backward();
      ddp.synchronize_buffers();
      RANK_CHECK(at::allclose(net->linear->weight.grad(), alone->linear->weight.grad()));
    });

    const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
      DistributedDataParallel ddp(make(), communicator, tiny());
    });
    for (const auto& error : errors) {
      CHECK(message_of<std::invalid_argument>(error).find(
                by_rows ? "buffer 'mask' has the layout SparseCsr, and only dense tensors"
                        : "buffer 'mask' has the layout Sparse, and only dense tensors") !=
            std::string::npos);
    }
  }
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

TEST_CASE("buffers that are not broadcast start as rank 0's, unless the ranks begin as they are",
          "[worker][ddp][buffers]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    for (const bool init_sync : {true, false}) {
      Counting net = seeded(1, [] { return Counting(); });
      net->scale.fill_(1 + communicator.rank());
      DataParallelOptions options = tiny();
      options.broadcast_buffers = false;
      options.init_sync = init_sync;
      DistributedDataParallel ddp(net, communicator, options);
      RANK_CHECK(net->scale.item<float>() == (init_sync ? 1 : 1 + communicator.rank()));

      const at::Tensor own = net->scale.clone();
      const at::Tensor images = input(communicator.rank());
      for (int step = 0; step < 2; ++step) {
        ddp.zero_grad();
        ddp.forward(images).backward();
      }
      RANK_CHECK(at::allclose(net->scale, own + 2 * images.abs().mean()));
    }
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

}  // namespace
}  // namespace ddprun::worker
