// Operations that compute a gradient where it is reduced: no copy, and nothing is overwritten.
#include "worker/torch/gradient_memory.h"

#include <optional>
#include <stdexcept>

#include "tests/testing/catch.h"
#include "tests/worker/torch/small_net.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::worker {
namespace {

// x w^T, whose backward notes where it was told to compute the gradient of w.
thread_local std::vector<const void*> places;
thread_local bool backward_fails = false;

class NotingLinear : public torch::autograd::Function<NotingLinear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return at::mm(x, weight.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    at::Tensor gradient = gradient_memory(saved[1]);
    if (gradient.strides() != saved[1].strides()) throw std::runtime_error("another layout");
    places.push_back(gradient.data_ptr());
    if (backward_fails) throw std::runtime_error("told to fail");
    at::mm_out(gradient, gradients[0].t(), saved[0]);
    return {at::mm(gradients[0], saved[1]), gradient};
  }
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int uses_of_weight = 1)
      : uses(uses_of_weight), weight(register_parameter("weight", torch::randn({4, 4}))) {}
  at::Tensor forward(at::Tensor x) {
    for (int i = 0; i < uses; ++i) x = NotingLinear::apply(x, weight);
    return x;
  }
  at::Tensor gradient() const { return weight.grad(); }

  int uses;
  at::Tensor weight;
};
TORCH_MODULE(Net);

// Backward comes to its last parameter last, so that the buckets are put into another order.
struct BothImpl : torch::nn::Module {
  BothImpl() {
    last = register_module("last", Net());
    first = register_module("first", Net());
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(first->forward(x)); }

  Net first{nullptr}, last{nullptr};
};
TORCH_MODULE(Both);

at::Tensor loss(const at::Tensor& y) { return y.pow(2).mean(); }

Net reused_net(int uses = 1) {
  return seeded(1, [&] { return Net(uses); });
}
at::Tensor make_input() {
  return seeded(2, [] { return torch::randn({8, 4}); });
}

// Of the whole batch, computed in one process with LibTorch's own operations.
at::Tensor expected_gradient(int uses = 1) {
  const Net net = reused_net(uses);
  at::Tensor x = make_input();
  for (int i = 0; i < uses; ++i) x = at::mm(x, net->weight.t());
  return torch::autograd::grad({loss(x)}, {net->weight})[0];
}

// Runs `body` as two ranks with half a batch each.
void with_two_ranks(
    int uses,
    const std::function<void(Net&, DistributedDataParallel<NetImpl>&, const at::Tensor&)>& body) {
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    places.clear();
    Net net = reused_net(uses);
    DistributedDataParallel ddp(net, communicator);
    body(net, ddp, make_input().narrow(0, communicator.rank() * 4, 4));
  });
}

TEST_CASE("the gradient is computed where it is reduced, in every step", "[worker][ddp]") {
  const at::Tensor expected = expected_gradient();
  with_two_ranks(1, [&](Net& net, auto& ddp, const at::Tensor& x) {
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      loss(ddp.forward(x)).backward();
      RANK_CHECK(places.back() == places.front());
      RANK_CHECK(net->gradient().data_ptr() == places.front());
      RANK_CHECK(at::allclose(net->gradient(), expected));
    }
  });
}

TEST_CASE("a weight that has got other strides has its gradient computed with them, elsewhere",
          "[worker][ddp]") {
  const at::Tensor expected = expected_gradient();
  with_two_ranks(1, [&](Net& net, auto& ddp, const at::Tensor& x) {
    loss(ddp.forward(x)).backward();
    net->weight.set_data(net->weight.detach().t().contiguous().t());
    ddp.zero_grad();
    loss(ddp.forward(x)).backward();
    RANK_CHECK(places.back() != places.front());
    RANK_CHECK(net->gradient().data_ptr() == places.front());
    RANK_CHECK(at::allclose(net->gradient(), expected));
  });
}

TEST_CASE("without data-parallel training every gradient has memory of its own", "[worker][ddp]") {
  places.clear();
  Net net = reused_net();
  loss(net->forward(make_input())).backward();
  const at::Tensor kept = net->gradient();
  net->zero_grad();
  loss(net->forward(make_input())).backward();
  CHECK(kept.data_ptr() != net->gradient().data_ptr());
  CHECK(at::allclose(net->gradient(), expected_gradient()));
  CHECK(kept.strides() == net->weight.strides());
}

TEST_CASE("what autograd::grad() returns is not overwritten by the next step", "[worker][ddp]") {
  const at::Tensor expected = expected_gradient();
  with_two_ranks(1, [&](Net& net, auto& ddp, const at::Tensor& x) {
    const at::Tensor kept = torch::autograd::grad({loss(net->forward(x))}, {net->weight})[0];
    const at::Tensor copy = kept.clone();
    loss(ddp.forward(x)).backward();
    RANK_CHECK(kept.data_ptr() != net->gradient().data_ptr());
    RANK_CHECK(at::equal(kept, copy));
    RANK_CHECK(at::allclose(net->gradient(), expected));
  });
}

TEST_CASE("a parameter that is used twice gets the sum", "[worker][ddp]") {
  const at::Tensor expected = expected_gradient(2);
  with_two_ranks(2, [&](Net& net, auto& ddp, const at::Tensor& x) {
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      loss(ddp.forward(x)).backward();
      RANK_CHECK(places[places.size() - 2] != places.back());
      RANK_CHECK(at::allclose(net->gradient(), expected));
    }
  });
}

TEST_CASE("accumulation adds, and the sum outlives data-parallel training", "[worker][ddp]") {
  const at::Tensor expected = expected_gradient();
  Net nets[2]{reused_net(), reused_net()};
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    Net& net = nets[communicator.rank()];
    DistributedDataParallel ddp(net, communicator);
    const at::Tensor x = make_input().narrow(0, communicator.rank() * 4, 4);
    {
      const auto local = ddp.no_sync();
      loss(ddp.forward(x)).backward();
    }
    loss(ddp.forward(x)).backward();
    RANK_CHECK(at::allclose(net->gradient(), 2 * expected));
    ddp.zero_grad();
    const auto local = ddp.no_sync();
    loss(ddp.forward(make_input())).backward();
  });
  for (const Net& net : nets) CHECK(at::allclose(net->gradient(), expected));
}

TEST_CASE("a gradient that somebody keeps from no_sync() has its values after the next backward",
          "[worker][ddp]") {
  for (const bool detached : {false, true}) {
    for (const bool next_reduces : {false, true}) {
      with_two_ranks(1, [&](Net& net, auto& ddp, const at::Tensor& x) {
        const auto backward = [&](const at::Tensor& input, bool reduces) {
          std::optional<DistributedDataParallelBase::NoSync> local;
          if (!reduces) local.emplace(ddp);
          loss(ddp.forward(input)).backward();
        };
        for (int step = 0; step < 2; ++step) {
          backward(x, false);
          RANK_CHECK(net->gradient().data_ptr() == places.front());
          const at::Tensor kept = detached ? net->gradient().detach() : net->gradient();
          const at::Tensor values = kept.clone();
          ddp.zero_grad();
          backward(2 * x, next_reduces);
          RANK_CHECK(net->gradient().data_ptr() == places.front());
          RANK_CHECK(at::equal(kept, values));
          ddp.zero_grad();
        }
      });
    }
  }
}

TEST_CASE("a gradient that somebody keeps from no_sync() becomes the average that is reduced next",
          "[worker][ddp]") {
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    Both nets = seeded(1, [] { return Both(); });
    DistributedDataParallel ddp(nets, communicator);
    const at::Tensor x = make_input().narrow(0, communicator.rank() * 4, 4);
    std::vector<at::Tensor> kept;
    {
      const auto local = ddp.no_sync();
      loss(ddp.forward(x)).backward();
      for (const at::Tensor& parameter : nets->parameters()) kept.push_back(parameter.grad());
    }
    loss(ddp.forward(x)).backward();
    const std::vector<at::Tensor> parameters = nets->parameters();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      RANK_CHECK(at::equal(kept[i], parameters[i].grad()));
    }
  });
}

TEST_CASE("a gradient that a tensor hook keeps stays this rank's own", "[worker][ddp]") {
  const at::Tensor expected = expected_gradient();
  with_two_ranks(1, [&](Net& net, auto& ddp, const at::Tensor& x) {
    std::vector<at::Tensor> kept;
    net->weight.register_hook([&](const at::Tensor& gradient) { kept.push_back(gradient); });
    const at::Tensor own = torch::autograd::grad({loss(net->forward(x))}, {net->weight})[0];
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      loss(ddp.forward(x)).backward();
      RANK_CHECK(at::allclose(net->gradient(), expected));
      for (const at::Tensor& gradient : kept) RANK_CHECK(at::equal(gradient, own));
    }
    RANK_CHECK(kept.size() >= 2);
  });
}

TEST_CASE("after a backward that failed, the next one is right", "[worker][ddp]") {
  const at::Tensor expected = expected_gradient();
  with_two_ranks(1, [&](Net& net, auto& ddp, const at::Tensor& x) {
    backward_fails = true;
    bool failed = false;
    try {
      loss(ddp.forward(x)).backward();
    } catch (const std::runtime_error&) {
      failed = true;
    }
    backward_fails = false;
    RANK_CHECK(failed);
    ddp.zero_grad();
    loss(ddp.forward(x)).backward();
    RANK_CHECK(net->gradient().data_ptr() == places.front());
    RANK_CHECK(at::allclose(net->gradient(), expected));
  });
}

}  // namespace
}  // namespace ddprun::worker
