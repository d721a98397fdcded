// DataParallel against the same module with the whole batch.
#include "worker/torch/data_parallel.h"

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/worker/torch/small_net.h"
#include "worker/torch/data_parallel_graph.h"

namespace ddprun::worker {
namespace {

using Backward = DataParallelReplicas::Backward;

struct NormNetImpl : torch::nn::Module {
  NormNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    fc = register_module("fc", torch::nn::Linear(4, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return fc(norm(conv(x)).relu().mean({2, 3})); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};

std::shared_ptr<SmallNetImpl> small_net(std::uint64_t seed = 1) {
  return seeded(seed, [] { return std::make_shared<SmallNetImpl>(); });
}

// Both ways of backward, which a caller cannot choose between on the CPU.
template <class Net>
class Parallel {
 public:
  Parallel(const std::shared_ptr<Net>& module, std::size_t count, Backward backward)
      : modules_{module} {
    while (modules_.size() < count) modules_.push_back(std::make_shared<Net>());
    replicas_ = std::make_unique<DataParallelReplicas>(
        std::vector<std::shared_ptr<torch::nn::Module>>(modules_.begin(), modules_.end()),
        std::vector<at::Device>(count, at::kCPU), backward);
  }
  at::Tensor forward(const at::Tensor& images) {
    return replicas_->run(images, [this](std::size_t i, const at::Tensor& part) {
      return modules_[i]->forward(part);
    });
  }

 private:
  std::vector<std::shared_ptr<Net>> modules_;
  std::unique_ptr<DataParallelReplicas> replicas_;
};

std::string thrown_by(const std::function<void()>& call) {
  return testing::message_of<std::exception>(call);
}

constexpr Backward both[] = {Backward::OwnThreads, Backward::Autograd};

TEST_CASE("replicas compute outputs and gradients of the whole batch", "[worker][dp]") {
  for (const Backward backward : both) {
    for (const std::size_t count : {1, 2, 3}) {
      const Batch batch = random_batch(2, 8);  // 3 + 3 + 2
      const auto alone = small_net(), net = small_net();
      Parallel<SmallNetImpl> parallel(net, count, backward);
      const at::Tensor expected = alone->forward(batch.images);
      const at::Tensor output = parallel.forward(batch.images);
      loss_of(expected, batch).backward();
      loss_of(output, batch).backward();

      INFO(count << " replicas");
      CHECK(at::allclose(output, expected, 1e-5, 1e-6));
      CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
    }
  }
}

TEST_CASE("training with replicas is training with the whole batch", "[worker][dp]") {
  for (const Backward backward : both) {
    const auto alone = small_net(), net = small_net();
    Parallel<SmallNetImpl> parallel(net, 2, backward);
    torch::optim::SGD first(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD second(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (std::uint64_t step = 0; step < 6; ++step) {
      // The fourth step accumulates, the fifth has a part for one replica alone.
      const Batch batch = random_batch(step, step == 4 ? 1 : 7);
      if (step != 3) first.zero_grad(), second.zero_grad();
      loss_of(alone->forward(batch.images), batch).backward();
      loss_of(parallel.forward(batch.images), batch).backward();
      first.step(), second.step();
    }
    CHECK(all_close(copies(net->parameters()), copies(alone->parameters()), 1e-4));
  }
}

TEST_CASE("the same step twice has the same bits", "[worker][dp]") {
  const Batch batch = random_batch(5, 9);
  std::vector<std::vector<at::Tensor>> results;
  for (int i = 0; i < 3; ++i) {
    const auto net = small_net();
    Parallel<SmallNetImpl> parallel(net, 3, Backward::OwnThreads);
    loss_of(parallel.forward(batch.images), batch).backward();
    results.push_back(gradients_of(*net));
  }
  CHECK(all_equal(results[0], results[1]));
  CHECK(all_equal(results[0], results[2]));
}

TEST_CASE("each replica normalises its part, and the statistics are replica 0's", "[worker][dp]") {
  for (const Backward backward : both) {
    const auto make = [] { return seeded(3, [] { return std::make_shared<NormNetImpl>(); }); };
    const Batch batch = random_batch(4, 8);
    const auto net = make(), first = make(), second = make();
    Parallel<NormNetImpl> parallel(net, 2, backward);
    const Batch parts[] = {batch.part(0, 2), batch.part(1, 2)};

    const at::Tensor output = parallel.forward(batch.images);
    loss_of(output, batch).backward();

    const at::Tensor outputs[] = {first->forward(parts[0].images),
                                  second->forward(parts[1].images)};
    (loss_of(outputs[0], parts[0]) / 2).backward();
    (loss_of(outputs[1], parts[1]) / 2).backward();
    CHECK(at::allclose(output, at::cat({outputs[0], outputs[1]}), 1e-5, 1e-6));
    CHECK(at::allclose(net->norm->running_mean, first->norm->running_mean));
    CHECK(at::allclose(net->norm->running_var, first->norm->running_var));
    CHECK(net->norm->num_batches_tracked.item<int>() == 1);
    std::vector<at::Tensor> sums = gradients_of(*first);
    const std::vector<at::Tensor> others = gradients_of(*second);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += others[i];
    CHECK(all_close(gradients_of(*net), sums));

    net->eval();
    first->eval();
    const at::NoGradGuard no_grad;
    CHECK(at::allclose(parallel.forward(batch.images), first->forward(batch.images), 1e-5, 1e-6));
  }
}

TEST_CASE("a norm that is frozen in a module that trains is frozen in all replicas",
          "[worker][dp]") {
  for (const Backward backward : both) {
    const Batch batch = random_batch(9, 7);
    const auto make = [] { return seeded(3, [] { return std::make_shared<NormNetImpl>(); }); };
    const auto alone = make(), net = make();
    Parallel<NormNetImpl> parallel(net, 3, backward);
    for (const bool frozen : {true, false, true}) {
      for (const auto& module : {alone, net}) {
        module->train();
        module->zero_grad();
        if (frozen) module->norm->eval();
        module->norm->running_mean.fill_(0.5);
        module->norm->running_var.fill_(2);
      }
      const at::Tensor output = parallel.forward(batch.images);
      loss_of(output, batch).backward();
      if (!frozen) continue;  // Each replica normalises its own part.
      const at::Tensor expected = alone->forward(batch.images);
      loss_of(expected, batch).backward();
      CHECK(at::allclose(output, expected, 1e-5, 1e-6));
      CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
    }
  }
}

TEST_CASE("two forwards have one backward, as without replicas", "[worker][dp]") {
  const Batch batch = random_batch(9, 6);
  const auto make = [] { return seeded(3, [] { return std::make_shared<NormNetImpl>(); }); };
  const auto step = [&](auto& forwards) {
    const at::Tensor first = forwards.forward(batch.images);
    const at::Tensor second = forwards.forward(batch.images * 2);
    (loss_of(first, batch) + loss_of(second, batch)).backward();
  };
  for (const bool training : {true, false}) {
    const auto alone = make(), net = make();
    alone->train(training);
    net->train(training);
    Parallel<NormNetImpl> parallel(net, 2, Backward::OwnThreads);
    CHECK_NOTHROW(step(parallel));
    step(*alone);
    // In training each replica normalises its own part.
    if (!training) CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
  }
}

TEST_CASE("buffers that change between forward and backward are seen", "[worker][dp]") {
  const Batch batch = random_batch(9, 6);
  const auto net = std::make_shared<NormNetImpl>();
  net->eval();
  Parallel<NormNetImpl> parallel(net, 2, Backward::OwnThreads);
  const at::Tensor loss = loss_of(parallel.forward(batch.images), batch);
  net->norm->running_var.mul_(2);
  parallel.forward(batch.images);
  CHECK(thrown_by([&] { loss.backward(); }).find("inplace operation") != std::string::npos);
}

TEST_CASE("second derivatives through replicas are refused", "[worker][dp]") {
  for (const Backward backward : both) {
    const Batch batch = random_batch(9, 6);
    const auto net = small_net();
    Parallel<SmallNetImpl> parallel(net, 2, backward);
    const at::Tensor loss = loss_of(parallel.forward(batch.images), batch);
    const std::string message = thrown_by(
        [&] { torch::autograd::grad({loss}, net->parameters(), {}, true, /*create_graph=*/true); });
    CHECK(message.find("second derivatives through DataParallel") != std::string::npos);
  }
}

TEST_CASE("the input gets its gradient, and frozen parameters get none", "[worker][dp]") {
  for (const Backward backward : both) {
    const Batch batch = random_batch(6, 5);
    const auto alone = small_net(), net = small_net();
    for (const auto& module : {alone, net}) module->conv1->weight.requires_grad_(false);
    Parallel<SmallNetImpl> parallel(net, 2, backward);
    const at::Tensor expected = batch.images.clone().requires_grad_();
    const at::Tensor images = batch.images.clone().requires_grad_();
    loss_of(alone->forward(expected), batch).backward();
    loss_of(parallel.forward(images), batch).backward();

    CHECK(at::allclose(images.grad(), expected.grad(), 1e-5, 1e-7));
    CHECK_FALSE(net->conv1->weight.grad().defined());
    CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
  }
}

TEST_CASE("new weights, another layout and another mode reach the replicas", "[worker][dp]") {
  for (const Backward backward : both) {
    const Batch batch = random_batch(7, 4);
    const auto net = small_net(1), other = small_net(2);
    Parallel<SmallNetImpl> parallel(net, 2, backward);
    const at::NoGradGuard no_grad;
    parallel.forward(batch.images);
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      const at::Tensor weights = other->parameters()[i];
      const auto format =
          weights.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
      net->parameters()[i].set_data(weights.contiguous(format).clone());
    }
    CHECK(at::allclose(parallel.forward(batch.images), other->forward(batch.images), 1e-5, 1e-6));
    const c10::InferenceMode inference;
    CHECK(at::allclose(parallel.forward(batch.images), other->forward(batch.images), 1e-5, 1e-6));
  }
}

struct FailingNetImpl : torch::nn::Module {
  FailingNetImpl() { weight = register_parameter("weight", torch::ones({1})); }
  at::Tensor forward(const at::Tensor& x) {
    TORCH_CHECK(x.max().item<float>() < 100, "this image is too bright");
    return x * weight;
  }
  at::Tensor weight;
};

TEST_CASE("what a replica throws leaves forward, and the next forward works", "[worker][dp]") {
  const auto net = std::make_shared<FailingNetImpl>();
  Parallel<FailingNetImpl> parallel(net, 2, Backward::OwnThreads);
  const at::Tensor bad = torch::tensor({1.0F, 200.0F});
  CHECK(thrown_by([&] { parallel.forward(bad); }).find("too bright") != std::string::npos);
  CHECK(parallel.forward(torch::tensor({1.0F, 2.0F})).sum().item<float>() == 3);
}

TEST_CASE("a second backward through one forward is refused, unless the graph was kept",
          "[worker][dp]") {
  const auto net = std::make_shared<FailingNetImpl>();
  Parallel<FailingNetImpl> parallel(net, 2, Backward::OwnThreads);
  const at::Tensor sum = parallel.forward(torch::tensor({1.0F, 2.0F})).sum();
  sum.backward({}, /*retain_graph=*/true);
  sum.backward();
  CHECK(net->weight.grad().item<float>() == 6);
  CHECK_THROWS(sum.backward());
}

TEST_CASE("replicas of another shape, or a module elsewhere, are refused", "[worker][dp]") {
  using torch::nn::Linear;
  const auto make = [](std::int64_t size) { return Linear(size, 1).ptr(); };
  const auto build = [&](std::vector<std::int64_t> sizes, std::vector<at::Device> devices,
                         Backward backward) {
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    for (const std::int64_t size : sizes) modules.push_back(make(size));
    DataParallelReplicas(modules, devices, backward);
  };
  const at::Device cpu = at::kCPU, gpu(at::kCUDA, 0);
  CHECK(thrown_by([&] {
          build({2, 3}, {cpu, cpu}, Backward::OwnThreads);
        }).find("parameter") != std::string::npos);
  CHECK(thrown_by([&] {
          DataParallelReplicas({torch::nn::Sequential(Linear(2, 1)).ptr(), make(2)}, {cpu, cpu},
                               Backward::OwnThreads);
        }).find("has 1 modules, the module has 2") != std::string::npos);
  CHECK_THROWS_AS(build({2}, {cpu, cpu}, Backward::OwnThreads), std::invalid_argument);
  CHECK_THROWS_AS(build({}, {}, Backward::OwnThreads), std::invalid_argument);
  CHECK(thrown_by([&] {
          build({2, 2}, {gpu, gpu}, Backward::Autograd);
        }).find("cuda:0") != std::string::npos);
  CHECK_THROWS_AS(build({2, 2}, {gpu, gpu}, Backward::OwnThreads), std::invalid_argument);
}

// A module that uses DataParallel, as `train --data-parallel` does.
struct ReplicatedNetImpl : torch::nn::Module {
  explicit ReplicatedNetImpl(const std::shared_ptr<SmallNetImpl>& net)
      : parallel(
            register_module("net", net), {at::kCPU, at::kCPU},
            // Its numbers are for nothing; but drawn beside another rank's they would change them.
            [] { return seeded(0, [] { return std::make_shared<SmallNetImpl>(); }); }) {}
  at::Tensor forward(const at::Tensor& x) { return parallel.forward(x); }
  DataParallel<SmallNetImpl> parallel;
};

TEST_CASE("DistributedDataParallel around replicas averages their sums", "[worker][dp][ddp]") {
  const Batch batch = random_batch(8, 8);
  const auto alone = small_net(100);
  loss_of(alone->forward(batch.images), batch).backward();

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    const auto net = small_net(100 + static_cast<std::uint64_t>(communicator.rank()));
    const auto replicated = std::make_shared<ReplicatedNetImpl>(net);
    DistributedDataParallel ddp(replicated, communicator, options_with_tiny_buckets());
    const Batch part = batch.part(communicator.rank(), 2);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      loss_of(ddp.forward(part.images), part).backward();
      RANK_CHECK(all_close(gradients_of(*net), gradients_of(*alone)));
    }
  });
}

// LibTorch warns of a parameter whose gradient comes from another stream than the parameter's own.
TEST_CASE("copies on other devices are summed up on the parameter's stream", "[worker][dp]") {
  const at::Tensor parameter = at::ones({2}, at::requires_grad());
  const at::Tensor copy = at::empty({2}, at::kMeta);
  connect_copies(parameter, {copy});
  CHECK(copy.grad_fn()->input_metadata(0).device() == parameter.device());
  CHECK(copy.grad_fn()->num_inputs() == 2);
}

}  // namespace
}  // namespace ddprun::worker
