// Parameters without a gradient: unused, shared, frozen; and models that differ between ranks.
#include "tests/testing/catch.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::worker {
namespace {

using torch::nn::Linear;

// Which of the branches takes part is chosen per call.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    trunk = register_module("trunk", Linear(4, 4));
    left = register_module("left", Linear(4, 4));
    right = register_module("right", Linear(4, 4));
    never = register_module("never", Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x, bool use_left, bool use_right) {
    const at::Tensor hidden = trunk(x).tanh();
    at::Tensor sum = hidden.pow(2).mean();
    if (use_left) sum = sum + left(hidden).pow(2).mean();
    if (use_right) sum = sum + right(hidden).pow(3).mean();
    return sum;
  }
  Linear trunk{nullptr}, left{nullptr}, right{nullptr}, never{nullptr};
};
TORCH_MODULE(Branches);

Branches make_branches() {
  return seeded(1, [] { return Branches(); });
}

at::Tensor input() {
  return seeded(2, [] { return torch::randn({8, 4}); });
}

DataParallelOptions tiny(bool find_unused, bool static_graph) {
  DataParallelOptions options;
  options.buckets = {16, 64, 16};
  options.find_unused_parameters = find_unused;
  options.static_graph = static_graph;
  return options;
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || at::allclose(a, b, 1e-5, 1e-6));
}

TEST_CASE("a parameter that only one rank used gets that rank's share everywhere",
          "[worker][ddp][unused]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    Branches net = make_branches();
    DistributedDataParallel ddp(net, communicator, tiny(true, false));
    for (int step = 0; step < 4; ++step) {
      const bool i_use_left = (communicator.rank() + step) % 2 == 0;
      ddp.zero_grad();
      ddp.forward(input(), i_use_left, true).backward();

      Branches alone = make_branches();
      ((alone->forward(input(), true, true) + alone->forward(input(), false, true)) / 2).backward();
      RANK_CHECK(close(net->trunk->weight.grad(), alone->trunk->weight.grad()));
      RANK_CHECK(close(net->left->weight.grad(), alone->left->weight.grad()));
      RANK_CHECK(close(net->right->bias.grad(), alone->right->bias.grad()));
    }
  });
}

TEST_CASE("a parameter that no rank used keeps its undefined gradient", "[worker][ddp][unused]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    Branches net = make_branches();
    DistributedDataParallel ddp(net, communicator, tiny(true, false));

    ddp.forward(input(), true, false).backward();

    RANK_CHECK(!net->never->weight.grad().defined());
    RANK_CHECK(!net->right->weight.grad().defined());
    RANK_CHECK(net->left->weight.grad().defined());
  });
}

TEST_CASE("zero_grad leaves a gradient undefined that no backward defined",
          "[worker][ddp][unused]") {
  for (const bool static_graph : {false, true}) {
    run_ranks_well(2, [&](ThreadCommunicator& communicator) {
      Branches net = make_branches();
      DistributedDataParallel ddp(net, communicator, tiny(!static_graph, static_graph));
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad(/*set_to_none=*/false);
        RANK_CHECK(net->left->weight.grad().defined() == (step > 0));
        RANK_CHECK(!net->never->weight.grad().defined());
        if (step > 0) RANK_CHECK(net->left->weight.grad().count_nonzero().item<int>() == 0);
        ddp.forward(input(), true, true).backward();

        Branches alone = make_branches();
        alone->forward(input(), true, true).backward();
        RANK_CHECK(close(net->left->weight.grad(), alone->left->weight.grad()));
        RANK_CHECK(!net->never->weight.grad().defined());
      }
    });
  }
}

TEST_CASE("with a static graph unused parameters cost nothing after the first step",
          "[worker][ddp][unused]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    Branches net = make_branches();
    DistributedDataParallel ddp(net, communicator, tiny(false, true));
    const std::size_t buckets_before = ddp.bucket_count();
    const bool i_use_left = communicator.rank() == 1;  // Unused on rank 0 in every step.
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp.forward(input(), i_use_left, true).backward();

      Branches alone = make_branches();
      ((alone->forward(input(), true, true) + alone->forward(input(), false, true)) / 2).backward();
      RANK_CHECK(!net->never->weight.grad().defined());
      RANK_CHECK(close(net->left->weight.grad(), alone->left->weight.grad()));
      RANK_CHECK(close(net->trunk->weight.grad(), alone->trunk->weight.grad()));
    }
    RANK_CHECK(ddp.bucket_count() < buckets_before);
  });
}

TEST_CASE("without the option the next forward names the parameters that got no gradient",
          "[worker][ddp][unused]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    Branches net = make_branches();
    DistributedDataParallel ddp(net, communicator, tiny(false, false));
    ddp.forward(input(), true, true).backward();
    ddp.forward(input(), true, true).backward();
  });

  for (const auto& error : errors) {
    const std::string message = message_of<UnreducedGradients>(error);
    if (message.rfind("other: ", 0) == 0) continue;  // The peer's error came first.
    CHECK(message.find("2 of 8 parameters got none: 'never.weight', 'never.bias'") !=
          std::string::npos);
    CHECK(message.find("find_unused_parameters") != std::string::npos);
  }
  CHECK(errors[0]);
  CHECK(errors[1]);
}

TEST_CASE("a rank that lacks gradients its peer has ends both with its reason",
          "[worker][ddp][unused]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    Branches net = make_branches();
    net->never->weight.set_requires_grad(false);
    net->never->bias.set_requires_grad(false);
    DistributedDataParallel ddp(net, communicator, tiny(false, false));
    for (int step = 0; step < 2; ++step) {
      ddp.forward(input(), communicator.rank() == 0, true).backward();
    }
  });

  CHECK(message_of<CommunicatorError>(errors[0]).find("'left.weight'") != std::string::npos);
  CHECK(message_of<UnreducedGradients>(errors[1]).find("'left.weight'") != std::string::npos);
}

TEST_CASE("frozen parameters are rank 0's and get no gradient, the others the whole batch's",
          "[worker][ddp][unused]") {
  const auto freeze = [](Branches& net) {
    net->never->weight.set_requires_grad(false);
    net->never->bias.set_requires_grad(false);
    net->trunk->weight.set_requires_grad(false);
  };
  const at::Tensor x = input();
  Branches alone = make_branches();
  freeze(alone);
  alone->forward(x, true, true).backward();

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    const int rank = communicator.rank();
    Branches net = seeded(1 + static_cast<std::uint64_t>(rank), [] { return Branches(); });
    freeze(net);
    DistributedDataParallel ddp(net, communicator, tiny(false, false));
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      ddp.forward(x.narrow(0, rank * 4, 4), true, true).backward();

      const auto mine = net->named_parameters();
      for (const auto& item : alone->named_parameters()) {
        RANK_CHECK(at::equal(mine[item.key()], item.value()));
        RANK_CHECK(close(mine[item.key()].grad(), item.value().grad()));
      }
    }
    RANK_CHECK(!net->trunk->weight.grad().defined());
  });
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    in = register_module("in", Linear(torch::nn::LinearOptions(4, 4).bias(false)));
    register_parameter("tied", in->weight);
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::nn::functional::linear(in(x).tanh(), in->weight);
  }
  Linear in{nullptr};
};
TORCH_MODULE(Tied);

TEST_CASE("a parameter with two names and two uses is reduced once", "[worker][ddp][unused]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    const at::Tensor x = input();
    Tied net = seeded(3, [] { return Tied(); });
    DistributedDataParallel ddp(net, communicator, tiny(false, false));
    Tied alone = seeded(3, [] { return Tied(); });
    alone->forward(x).pow(2).mean().backward();

    RANK_CHECK(ddp.bucket_count() == 1);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      ddp.forward(x.narrow(0, communicator.rank() * 4, 4)).pow(2).mean().backward();
      RANK_CHECK(close(net->in->weight.grad(), alone->in->weight.grad()));
    }
  });
}

TEST_CASE("ranks with different models are told which parameter differs", "[worker][ddp]") {
  const auto errors = run_ranks(3, [](ThreadCommunicator& communicator) {
    Linear net(4, communicator.rank() == 2 ? 5 : 4);
    DistributedDataParallel ddp(net, communicator);
  });

  CHECK(message_of<ModelMismatch>(errors[2]).find(
            "on rank 2, it has parameter 'weight' Float [5, 4]") != std::string::npos);
  CHECK(message_of<ModelMismatch>(errors[0]).find("rank 2's differs") != std::string::npos);
  CHECK(message_of<ModelMismatch>(errors[1]).find("rank 2's differs") != std::string::npos);
}

TEST_CASE("a difference is a changed, a missing or an additional line", "[worker][ddp]") {
  CHECK_FALSE(first_difference({"a", "b"}, {"a", "b"}).has_value());
  CHECK(first_difference({"a", "c"}, {"a", "b"}) == "it has c where rank 0 has b");
  CHECK(first_difference({"a"}, {"a", "b"}) == "it lacks b, which rank 0 has");
  CHECK(first_difference({"a", "b"}, {"a"}) == "it has b, which rank 0 has not");
}

}  // namespace
}  // namespace ddprun::worker
