// Parameters without a gradient: unused, shared, frozen; and models that differ between ranks.
#include <ATen/record_function.h>

#include <atomic>

#include "tests/testing/catch.h"
#include "tests/testing/spaced_numbers.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/data_parallel.h"
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

#if defined(NDEBUG)  // Else inputs() asks a member that a released LibTorch does not have.
// Copies of whole numbers of 32 bits, which are the counts of uses alone, as LibTorch was asked for
// them: those for which the host may go on, and others.
std::atomic<int> copies_behind_the_host = 0, copies_of_the_host = 0;

std::unique_ptr<at::ObserverContext> note_copy(const at::RecordFunction& function) {
  const auto inputs = function.inputs();
  if (std::string(function.name()) != "aten::copy_" || !inputs[0].isTensor()) return nullptr;
  if (inputs[0].toTensor().scalar_type() != at::kInt) return nullptr;
  ++(inputs[2].toBool() ? copies_behind_the_host : copies_of_the_host);
  return nullptr;
}

// On the CPU each copy is waited for; on a GPU the host would wait for all of backward.
TEST_CASE("what a rank has used goes to the device without a wait of the host",
          "[worker][ddp][unused]") {
  copies_behind_the_host = copies_of_the_host = 0;
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback(note_copy).needsInputs(true));
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    Branches net = make_branches();
    DistributedDataParallel ddp(net, communicator, tiny(true, false));
    ddp.forward(input(), true, true).backward();
  });
  at::removeCallback(handle);
  CHECK(copies_behind_the_host == 2);
  CHECK(copies_of_the_host == 0);
}
#endif

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

// x w^T, whose backward may return no gradient for w, though autograd has come to it.
class OftenConstant : public torch::autograd::Function<OftenConstant> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, bool constant) {
    context->save_for_backward({x, weight});
    context->saved_data["constant"] = constant;
    return at::mm(x, weight.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    at::Tensor of_weight;
    if (!context->saved_data["constant"].toBool()) of_weight = at::mm(gradients[0].t(), saved[0]);
    return {at::mm(gradients[0], saved[1]), of_weight, {}};
  }
};

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    trunk = register_module("trunk", Linear(4, 4));
    a = register_module("a", Linear(torch::nn::LinearOptions(4, 4).bias(false)));
    b = register_module("b", Linear(torch::nn::LinearOptions(4, 4).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x, bool a_is_constant, bool b_is_constant) {
    const at::Tensor hidden = trunk(x).tanh();
    return (OftenConstant::apply(hidden, a->weight, a_is_constant).pow(2) +
            OftenConstant::apply(hidden, b->weight, b_is_constant).pow(3))
        .mean();
  }
  Linear trunk{nullptr}, a{nullptr}, b{nullptr};
};
TORCH_MODULE(TwoHeads);

TwoHeads two_heads() {
  return seeded(4, [] { return TwoHeads(); });
}

TEST_CASE("a gradient that backward left undefined on one rank becomes the others' average",
          "[worker][ddp][unused]") {
  for (const DataParallelOptions& options :
       {tiny(false, false), tiny(true, false), tiny(false, true)}) {
    run_ranks_well(2, [&](ThreadCommunicator& communicator) {
      TwoHeads net = two_heads();
      DistributedDataParallel ddp(net, communicator, options);
      const bool constant = communicator.rank() == 0;
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        ddp.forward(input(), constant, !constant).backward();

        TwoHeads alone = two_heads();
        ((alone->forward(input(), true, false) + alone->forward(input(), false, true)) / 2)
            .backward();
        RANK_CHECK(close(net->a->weight.grad(), alone->a->weight.grad()));
        RANK_CHECK(close(net->b->weight.grad(), alone->b->weight.grad()));
      }
    });
  }
}

TEST_CASE("a gradient that every rank left undefined stays so where unused ones are looked for",
          "[worker][ddp][unused]") {
  for (const bool static_graph : {false, true}) {
    run_ranks_well(2, [&](ThreadCommunicator& communicator) {
      TwoHeads net = two_heads();
      DistributedDataParallel ddp(net, communicator, tiny(!static_graph, static_graph));
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        ddp.forward(input(), true, false).backward();
        RANK_CHECK(!net->a->weight.grad().defined());
        RANK_CHECK(net->b->weight.grad().defined());
      }
    });
  }
}

TEST_CASE("a gradient of an earlier step stays where every rank's backward left none",
          "[worker][ddp][unused]") {
  DataParallelOptions options = tiny(true, false);
  options.sum = true;
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    TwoHeads net = two_heads();
    DistributedDataParallel ddp(net, communicator, options);
    ddp.forward(input(), false, false).backward();
    const at::Tensor old = net->a->weight.grad().clone();
    for (int step = 0; step < 3; ++step) {
      net->trunk->zero_grad();
      net->b->zero_grad();
      ddp.forward(input(), true, false).backward();
      RANK_CHECK(at::equal(net->a->weight.grad(), old));
    }
  });
}

// Replicas whose forward uses one head alone: the sum over them is undefined for the other.
struct HeadOfReplicaImpl : torch::nn::Module {
  HeadOfReplicaImpl() {
    a = register_module("a", Linear(4, 4));
    b = register_module("b", Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return use_a ? a(x) : b(x); }
  bool use_a = true;
  Linear a{nullptr}, b{nullptr};
};

struct ReplicatedHeadsImpl : torch::nn::Module {
  explicit ReplicatedHeadsImpl(bool use_a)
      : net(register_module("net",
                            seeded(5, [] { return std::make_shared<HeadOfReplicaImpl>(); }))),
        parallel(net, {at::kCPU, at::kCPU}, [&] {
          const auto replica = std::make_shared<HeadOfReplicaImpl>();
          replica->use_a = use_a;
          return replica;
        }) {
    net->use_a = use_a;
  }
  at::Tensor forward(const at::Tensor& x) { return parallel.forward(x); }
  std::shared_ptr<HeadOfReplicaImpl> net;
  DataParallel<HeadOfReplicaImpl> parallel;
};

TEST_CASE("replicas of two ranks that use different heads end with equal gradients",
          "[worker][dp][ddp][unused]") {
  for (const bool find_unused : {false, true}) {
    run_ranks_well(2, [&](ThreadCommunicator& communicator) {
      const auto module = std::make_shared<ReplicatedHeadsImpl>(communicator.rank() == 0);
      DistributedDataParallel ddp(module, communicator, tiny(find_unused, false));
      for (int step = 0; step < 2; ++step) {
        ddp.zero_grad();
        ddp.forward(input()).pow(2).mean().backward();
        for (const at::Tensor& parameter : module->parameters()) {
          RANK_CHECK(parameter.grad().defined());
          const at::Tensor all = all_gather(communicator, parameter.grad());
          RANK_CHECK(at::equal(all[0], all[1]));
          RANK_CHECK(all[0].count_nonzero().item<int>() > 0);
        }
      }
    });
  }
}

TEST_CASE("a parameter that was used in an accumulated batch alone is averaged, too",
          "[worker][ddp][unused]") {
  for (const bool static_graph : {false, true}) {
    run_ranks_well(2, [&](ThreadCommunicator& communicator) {
      Branches net = make_branches();
      DistributedDataParallel ddp(net, communicator, tiny(!static_graph, static_graph));
      const bool i_use_left = communicator.rank() == 0;
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        {
          const auto local = ddp.no_sync();
          ddp.forward(input(), i_use_left, false).backward();
        }
        ddp.forward(input(), false, true).backward();

        Branches alone = make_branches();
        ((alone->forward(input(), true, true) + alone->forward(input(), false, true) +
          2 * alone->trunk(input()).tanh().pow(2).mean()) /
         2)
            .backward();
        RANK_CHECK(close(net->left->weight.grad(), alone->left->weight.grad()));
        RANK_CHECK(close(net->right->weight.grad(), alone->right->weight.grad()));
        RANK_CHECK(close(net->trunk->weight.grad(), alone->trunk->weight.grad()));
        RANK_CHECK(!net->never->weight.grad().defined());
      }
    });
  }
}

// `left` has a gradient of an earlier step, of which only the trunk's and the right's are cleared.
void check_old_gradients(DataParallelOptions options, bool rank_1_has_no_batch) {
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    Branches net = make_branches();
    DistributedDataParallel ddp(net, communicator, options);
    ddp.forward(input(), true, true).backward();
    const at::Tensor old = net->left->weight.grad().clone();
    for (int step = 0; step < 3; ++step) {
      net->trunk->zero_grad();
      net->right->zero_grad();
      if (rank_1_has_no_batch && communicator.rank() == 1) {
        ddp.reduce_without_backward();
      } else {
        ddp.forward(input(), false, true).backward();
      }
      RANK_CHECK(at::equal(net->left->weight.grad(), old));
    }
  });
}

TEST_CASE("a gradient of an earlier step stays where no rank used its parameter",
          "[worker][ddp][unused]") {
  DataParallelOptions options = tiny(true, false);
  check_old_gradients(options, false);
  check_old_gradients(options, /*rank_1_has_no_batch=*/true);
  options.sum = true;
  check_old_gradients(options, false);
}

TEST_CASE("a gradient that static_graph rules out ends the step on all ranks, and is named",
          "[worker][ddp][unused]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    Branches net = make_branches();
    DistributedDataParallel ddp(net, communicator, tiny(false, true));
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      ddp.forward(input(), /*use_left=*/communicator.rank() == 1 || step == 1, true).backward();
    }
  });
  const std::string message = message_of<UnreducedGradients>(errors[0]);
  CHECK(message.find("rank 0: parameter 'left.") == 0);
  CHECK(message.find("did not get in the first step, which static_graph rules out") !=
        std::string::npos);
  CHECK(message_of<CommunicatorError>(errors[1]) == message);
}

TEST_CASE("with a static graph a rank may have no batch in the first step",
          "[worker][ddp][unused]") {
  for (const int idle_ranks : {1, 2}) {
    run_ranks_well(2, [&](ThreadCommunicator& communicator) {
      Branches net = make_branches();
      DistributedDataParallel ddp(net, communicator, tiny(false, true));
      const bool i_use_left = communicator.rank() == 1;
      for (int step = 0; step < 4; ++step) {
        ddp.zero_grad();
        const int from = 2 - idle_ranks;  // The rank that alone knows of `left` is one of them.
        if (step == 0 && communicator.rank() >= from) {
          ddp.reduce_without_backward();
          continue;
        }
        ddp.forward(input(), i_use_left, true).backward();
        if (step == 0) continue;

        Branches alone = make_branches();
        ((alone->forward(input(), true, true) + alone->forward(input(), false, true)) / 2)
            .backward();
        RANK_CHECK(!net->never->weight.grad().defined());
        RANK_CHECK(close(net->left->weight.grad(), alone->left->weight.grad()));
        RANK_CHECK(close(net->right->weight.grad(), alone->right->weight.grad()));
        RANK_CHECK(close(net->trunk->weight.grad(), alone->trunk->weight.grad()));
      }
    });
  }
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

// An optimizer would go on to apply them.
TEST_CASE("gradients from before parameters were frozen are cleared as the others",
          "[worker][ddp][unused]") {
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    Branches net = make_branches();
    net->forward(input(), true, true).backward();
    net->trunk->weight.set_requires_grad(false);
    DistributedDataParallel ddp(net, communicator, tiny(false, false));
    ddp.zero_grad(/*set_to_none=*/false);
    RANK_CHECK(at::equal(net->trunk->weight.grad(), at::zeros_like(net->trunk->weight)));
    ddp.zero_grad();
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

// Each of several hosts may have a locale of its own, of the same model.
TEST_CASE("a model is told in words that no locale changes", "[worker][ddp]") {
  const testing::SpacedNumbers locale;
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    Linear net(1'000, communicator.rank() + 1);
    DistributedDataParallel ddp(net, communicator);
  });

  CHECK(message_of<ModelMismatch>(errors[1]).find("[2, 1000] strides [1000, 1]") !=
        std::string::npos);
}

TEST_CASE("a difference is a changed, a missing or an additional line", "[worker][ddp]") {
  CHECK_FALSE(first_difference({"a", "b"}, {"a", "b"}).has_value());
  CHECK(first_difference({"a", "c"}, {"a", "b"}) == "it has c where rank 0 has b");
  CHECK(first_difference({"a"}, {"a", "b"}) == "it lacks b, which rank 0 has");
  CHECK(first_difference({"a", "b"}, {"a"}) == "it has b, which rank 0 has not");
  // In the middle, where the next line is in its place.
  CHECK(first_difference({"a", "b", "c"}, {"a", "c"}) == "it has b, which rank 0 has not");
  CHECK(first_difference({"a", "c"}, {"a", "b", "c"}) == "it lacks b, which rank 0 has");
  CHECK(first_difference({"b", "a"}, {"a", "b"}) == "it has b where rank 0 has a");
}

}  // namespace
}  // namespace ddprun::worker
