// How gradients travel: their memory, their buckets, and that it happens while backward goes on.
#include "worker/torch/gradient_reducer.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "tests/testing/catch.h"
#include "tests/worker/torch/small_net.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/distributed_data_parallel.h"

namespace ddprun::worker {
namespace {

// No further apart than they are long, each with what it is rounded up to.
bool lie_together(const torch::nn::Module& module) {
  std::vector<const char*> ends;
  std::size_t bytes = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto* const data = static_cast<const char*>(parameter.grad().data_ptr());
    ends.insert(ends.end(), {data, data + parameter.nbytes()});
    bytes += parameter.nbytes() + gradient_alignment_bytes;
  }
  const auto [first, last] = std::minmax_element(ends.begin(), ends.end());
  return static_cast<std::size_t>(*last - *first) <= bytes;
}

TEST_CASE("gradients are views of flat memory with the parameter's strides", "[worker][ddp]") {
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(7, [] { return SmallNet(); });
    net->conv2->weight.set_data(net->conv2->weight.contiguous(at::MemoryFormat::ChannelsLast));
    DistributedDataParallel ddp(net, communicator);
    const Batch part = random_batch(3, 8).part(communicator.rank(), 2);
    loss_of(ddp.forward(part.images.contiguous(at::MemoryFormat::ChannelsLast)), part).backward();
    const std::vector<at::Tensor> first = gradients_of(*net);

    RANK_CHECK(net->conv2->weight.grad().strides() == net->conv2->weight.strides());
    RANK_CHECK(lie_together(*net));
    const void* const place = net->conv1->weight.grad().data_ptr();
    for (const bool set_to_none : {true, false}) {
      ddp.zero_grad(set_to_none);
      loss_of(ddp.forward(part.images), part).backward();
      RANK_CHECK(net->conv1->weight.grad().data_ptr() == place);
      RANK_CHECK(all_close(gradients_of(*net), first));
    }

    SmallNet alone = seeded(7, [] { return SmallNet(); });
    const Batch batch = random_batch(3, 8);
    loss_of(alone->forward(batch.images), batch).backward();
    RANK_CHECK(all_close(first, gradients_of(*alone)));
  });
}

using torch::nn::Linear;

struct MixedNetImpl : torch::nn::Module {
  MixedNetImpl() {
    first = register_module("first", Linear(6, 6));
    second = register_module("second", Linear(6, 6));
    third = register_module("third", Linear(6, 2));
    second->to(torch::kBFloat16);
    third->to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = second(first(x).to(torch::kBFloat16));
    return third(hidden.to(torch::kDouble));
  }
  Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(MixedNet);

TEST_CASE("parameters of several dtypes are reduced in buckets of their own", "[worker][ddp]") {
  const at::Tensor x = seeded(11, [] { return torch::randn({8, 6}); });
  MixedNet alone = seeded(12, [] { return MixedNet(); });
  alone->forward(x).pow(2).mean().backward();

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    MixedNet net = seeded(12, [] { return MixedNet(); });
    DistributedDataParallel ddp(net, communicator);
    ddp.forward(x.narrow(0, communicator.rank() * 4, 4)).pow(2).mean().backward();

    RANK_CHECK(ddp.bucket_count() >= 3);
    RANK_CHECK(net->second->weight.grad().scalar_type() == torch::kBFloat16);
    const auto mine = gradients_of(*net);
    const auto expected = gradients_of(*alone);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      RANK_CHECK(
          at::allclose(mine[i].to(torch::kDouble), expected[i].to(torch::kDouble), 0.05, 0.01));
    }
  });
}

TEST_CASE("a module on another device than the communicator's is refused by name",
          "[worker][ddp]") {
  class OfSecondDevice : public ThreadCommunicator {
   public:
    using ThreadCommunicator::ThreadCommunicator;
    bool is_cuda() const override { return true; }
    std::optional<int> cuda_device() const override { return 1; }
  };
  ThreadWorld world(1);
  OfSecondDevice communicator(world, 0);
  float memory[4] = {};
  const auto refusal = [&](c10::DeviceIndex index) -> std::string {
    const at::Device device(at::kCUDA, index);
    const at::Tensor weight = at::from_blob(
        memory, {4}, [](void*) {}, at::TensorOptions().device(device), device);
    std::string text;
    try {
      FlatGradients(communicator, {{"weight", weight}}, tiny_buckets);
    } catch (const std::invalid_argument& error) {
      text = error.what();
    } catch (const std::exception&) {  // Not refused, but there is no such device here.
    }
    return text;
  };
  CHECK(refusal(0).find("'weight' is on cuda:0, but the communicator is for") != std::string::npos);
  CHECK(refusal(1).empty());
}

TEST_CASE("an order that a lost broadcast has left is not taken for one", "[worker][ddp]") {
  const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(13, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const Batch part = random_batch(14, 8).part(communicator.rank(), 2);
    const at::Tensor loss = loss_of(ddp.forward(part.images), part);
    communicator.barrier(nullptr);
    communicator.lost = true;  // From the first backward on, which settles the order of buckets.
    loss.backward();
  });
  for (const auto& error : errors) {
    CHECK(message_of<CommunicatorError>(error) == "what was broadcast is garbage");
  }
}

TEST_CASE("the first bucket is reduced before backward has come to the last gradient",
          "[worker][ddp]") {
  // The hook of the first layer's input waits until a reduction has happened: without overlap it
  // would wait in vain.
  std::atomic<bool> waited_in_vain{false};
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(13, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const Batch part = random_batch(14, 8).part(communicator.rank(), 2);
    std::mutex mutex;
    std::condition_variable reduced;
    int reductions = 0;
    communicator.before_all_reduce = [&] {
      const std::lock_guard lock(mutex);
      ++reductions;
      reduced.notify_all();
    };
    net->conv1->weight.register_hook([&](const at::Tensor&) {
      std::unique_lock lock(mutex);
      if (!reduced.wait_for(lock, testing::patience(std::chrono::seconds(10)),
                            [&] { return reductions > 0; })) {
        waited_in_vain = true;
      }
    });

    loss_of(ddp.forward(part.images), part).backward();

    RANK_CHECK(!waited_in_vain);
    communicator.before_all_reduce = nullptr;
  });
}

TEST_CASE("a world of one leaves the module as it is", "[worker][ddp]") {
  ThreadWorld world(1);
  ThreadCommunicator communicator(world, 0);
  SmallNet net = seeded(15, [] { return SmallNet(); });
  DistributedDataParallel ddp(net, communicator);
  const Batch batch = random_batch(16, 4);

  loss_of(ddp.forward(batch.images), batch).backward();
  const auto gradients = gradients_of(*net);
  ddp.zero_grad();

  CHECK(world.reductions == 0);
  CHECK(ddp.bucket_count() == 0);
  CHECK_FALSE(net->fc->bias.grad().defined());

  DataParallelOptions options = options_with_tiny_buckets();
  options.reduce_world_of_one = true;
  DistributedDataParallel reducing(net, communicator, options);
  loss_of(reducing.forward(batch.images), batch).backward();
  CHECK(world.reductions > 1);
  CHECK(all_close(gradients_of(*net), gradients));
}

TEST_CASE("gradients outlive the wrapper", "[worker][ddp]") {
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(17, [] { return SmallNet(); });
    const Batch part = random_batch(18, 8).part(communicator.rank(), 2);
    std::vector<at::Tensor> before;
    {
      DistributedDataParallel ddp(net, communicator);
      loss_of(ddp.forward(part.images), part).backward();
      before = gradients_of(*net);
    }
    RANK_CHECK(all_equal(gradients_of(*net), before));
    net->zero_grad();
    loss_of(net->forward(part.images), part).backward();  // No hook is left.
  });
}

TEST_CASE("a gradient that somebody keeps over zero_grad has its values after the next step",
          "[worker][ddp]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    SmallNet net = seeded(1, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const Batch batch = random_batch(2, 4);
    for (const auto& [by_module, detached] :
         std::vector<std::pair<bool, bool>>{{false, false}, {true, true}, {false, true}}) {
      const auto zero = [&] { by_module ? net->zero_grad() : ddp.zero_grad(); };
      zero();
      loss_of(ddp.forward(batch.images), batch).backward();
      std::vector<at::Tensor> kept;
      for (const at::Tensor& parameter : net->parameters()) {
        kept.push_back(detached ? parameter.grad().detach() : parameter.grad());
      }
      const std::vector<at::Tensor> values = gradients_of(*net);

      zero();
      ddp.zero_grad(/*set_to_none=*/false);
      RANK_CHECK(all_equal(kept, values));
      loss_of(ddp.forward(batch.images * 3), batch).backward();
      RANK_CHECK(all_equal(kept, values));
      RANK_CHECK(!all_equal(gradients_of(*net), values));

      // One that was not let go is accumulated into, and is the same tensor.
      const at::Tensor held = net->fc->weight.grad();
      loss_of(ddp.forward(batch.images), batch).backward();
      RANK_CHECK(at::equal(held, net->fc->weight.grad()));
    }
  });
}

TEST_CASE("a gradient that somebody keeps while another takes its place keeps its values",
          "[worker][ddp]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    SmallNet net = seeded(1, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
    const Batch batch = random_batch(2, 4);
    loss_of(ddp.forward(batch.images), batch).backward();
    const at::Tensor kept = net->fc->weight.grad();
    const at::Tensor values = kept.clone();
    net->fc->weight.mutable_grad() = kept.clone();

    ddp.zero_grad(/*set_to_none=*/false);

    RANK_CHECK(at::equal(kept, values));
    RANK_CHECK(net->fc->weight.grad().count_nonzero().item<int>() == 0);
  });
}

struct PhaseImpl : torch::nn::Module {
  PhaseImpl() { phase = register_parameter("phase", torch::tensor(0.5)); }
  // The part of a complex number's conjugate is a view whose sign autograd changes lazily.
  at::Tensor forward(const at::Tensor& x) {
    return at::real(torch::complex(x, phase).conj() * torch::complex(x, x)).sum();
  }
  at::Tensor phase;
};
TORCH_MODULE(Phase);

TEST_CASE("a gradient that autograd has negated lazily keeps its sign", "[worker][ddp]") {
  const at::Tensor x = torch::tensor(1.5);
  Phase alone;
  alone->forward(x).backward();
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    Phase net;
    DistributedDataParallel ddp(net, communicator);
    ddp.forward(x).backward();
    RANK_CHECK(at::equal(net->phase.grad(), alone->phase.grad()));
  });
}

struct RotationImpl : torch::nn::Module {
  explicit RotationImpl(torch::Dtype type) {
    weight = register_parameter("weight", torch::randn({3, 3}, type));
    shift = register_parameter("shift", torch::randn({3}, type));
  }
  // The gradient of what was conjugated is a view that autograd conjugates lazily.
  at::Tensor forward(const at::Tensor& x) {
    return (x.mm(weight) + shift.conj()).abs().pow(2).mean();
  }
  at::Tensor weight, shift;
};
TORCH_MODULE(Rotation);

TEST_CASE("complex parameters are averaged as their parts are", "[worker][ddp]") {
  for (const torch::Dtype type : {torch::kComplexFloat, torch::kComplexDouble}) {
    const auto make = [&] { return seeded(5, [&] { return Rotation(type); }); };
    const auto input = [&](int rank) {
      return seeded(static_cast<std::uint64_t>(10 + rank), [&] {
        return torch::randn({4, 3}, type);
      });
    };
    Rotation alone = make();
    for (const int rank : {0, 1}) (alone->forward(input(rank)) / 2).backward();
    run_ranks_well(2, [&](ThreadCommunicator& communicator) {
      Rotation net = make();
      if (communicator.rank() == 1) net->weight.data().zero_();
      DistributedDataParallel ddp(net, communicator, options_with_tiny_buckets());
      for (int step = 0; step < 2; ++step) {
        ddp.zero_grad();
        ddp.forward(input(communicator.rank())).backward();
        RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
      }
    });
  }
}

TEST_CASE("a backward with create_graph is refused, as its derivatives would be lost",
          "[worker][ddp]") {
  const auto errors = run_ranks(2, [&](ThreadCommunicator& communicator) {
    SmallNet net = seeded(7, [] { return SmallNet(); });
    DistributedDataParallel ddp(net, communicator);
    const Batch batch = random_batch(3, 4);
    const at::Tensor loss = loss_of(ddp.forward(batch.images), batch);
    loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  });
  CHECK(message_of<UnreducedGradients>(errors[0]).find("create_graph") != std::string::npos);
}

}  // namespace
}  // namespace ddprun::worker
