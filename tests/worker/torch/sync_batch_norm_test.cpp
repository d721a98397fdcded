// SyncBatchNorm over ranks against BatchNorm over the whole batch.
#include "worker/torch/sync_batch_norm.h"

#include <ATen/ops/native_batch_norm_backward_native.h>
#include <torch/library.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>

#include "tests/testing/catch.h"
#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/data_parallel.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/replica_meeting.h"

namespace ddprun::worker {
namespace {

using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm2dOptions;

bool near(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-5) {
  return at::allclose(a, b, tolerance, tolerance);
}

// [6, 4, 5, 3] with a mean that is large against the spread.
at::Tensor images() {
  return seeded(1, [] { return torch::randn({6, 4, 5, 3}) * 0.5 + 30; });
}

BatchNorm2d make_norm() {
  BatchNorm2d norm(BatchNorm2dOptions(4));
  const at::NoGradGuard no_grad;
  norm->weight.copy_(torch::tensor({1.0, 0.5, -2.0, 3.0}));
  norm->bias.copy_(torch::tensor({0.0, 1.0, 2.0, -1.0}));
  return norm;
}

at::Tensor weights_of_loss() {
  return seeded(2, [] { return torch::randn({6, 4, 5, 3}); });
}

TEST_CASE("ranks with parts of a batch normalise as one rank with all of it", "[worker][sync_bn]") {
  for (const std::vector<std::int64_t>& sizes :
       std::vector<std::vector<std::int64_t>>{{3, 3}, {5, 1}, {6, 0}, {1, 2, 3}}) {
    const at::Tensor all = images().requires_grad_();
    BatchNorm2d alone = make_norm();
    const at::Tensor expected = alone->forward(all);
    (expected * weights_of_loss()).sum().backward();

    run_ranks_well(static_cast<int>(sizes.size()), [&](ThreadCommunicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      std::int64_t start = 0;
      for (std::size_t r = 0; r < rank; ++r) start += sizes[r];
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, start, sizes[rank]); };
      const BatchNormGroup group{reduction_queue_of(communicator, at::kCPU), communicator.rank(),
                                 communicator.world_size()};
      BatchNorm2d norm = make_norm();
      const at::Tensor x = part(images()).contiguous(at::MemoryFormat::ChannelsLast);
      x.requires_grad_();

      const at::Tensor y = sync_batch_norm(*norm, x, group);
      (y * part(weights_of_loss())).sum().backward();

      RANK_CHECK(near(y, part(expected), 1e-4));
      RANK_CHECK(near(x.grad(), part(all.grad()), 2e-4));
      RANK_CHECK(near(norm->running_mean, alone->running_mean));
      RANK_CHECK(near(norm->running_var, alone->running_var));
      at::Tensor weight_gradient = norm->weight.grad().clone();
      all_reduce(communicator, weight_gradient, ReduceOp::Sum);
      RANK_CHECK(near(weight_gradient, alone->weight.grad(), 1e-3));
      at::Tensor bias_gradient = norm->bias.grad().clone();
      all_reduce(communicator, bias_gradient, ReduceOp::Sum);
      RANK_CHECK(near(bias_gradient, alone->bias.grad(), 1e-4));
    });
  }
}

template <class Norm, class Sync>
void check_beside_whole_batch(const at::Tensor& images, bool affine = true) {
  INFO(images.sizes());
  const int world = 2;
  const auto options = torch::nn::BatchNormOptions(images.size(1)).affine(affine);
  const at::Tensor weights = seeded(5, [&] { return torch::randn_like(images); });
  const at::Tensor all = images.detach().clone().requires_grad_();
  Norm alone(options);
  const at::Tensor expected = alone->forward(all);
  (expected * weights).sum().backward();

  run_ranks_well(world, [&](ThreadCommunicator& communicator) {
    const auto part = [&](const at::Tensor& t) { return t.chunk(world)[communicator.rank()]; };
    Sync norm(options);
    torch::nn::Sequential net(norm);
    RANK_CHECK(synchronize_batch_norms(*net, {reduction_queue_of(communicator, at::kCPU),
                                              communicator.rank(), world}) == 1);
    const at::Tensor x = part(images).detach().clone().requires_grad_();
    const at::Tensor y = norm->forward(x);
    (y * part(weights)).sum().backward();
    RANK_CHECK(near(y, part(expected), 1e-4));
    RANK_CHECK(near(x.grad(), part(all.grad()), 2e-4));
    RANK_CHECK(near(norm->running_mean, alone->running_mean));
    RANK_CHECK(near(norm->running_var, alone->running_var));
    norm->eval();
    alone->eval();
    RANK_CHECK(near(norm->forward(x), alone->forward(x), 1e-4));
    const auto clone = std::dynamic_pointer_cast<typename Sync::ContainedType>(norm->clone());
    RANK_CHECK(clone != nullptr && clone->is_synchronized());
  });
}

TEST_CASE("inputs of any number of dimensions are normalised over all ranks", "[worker][sync_bn]") {
  using torch::nn::BatchNorm1d;
  using torch::nn::BatchNorm3d;
  const auto random = [](at::IntArrayRef shape) {
    return seeded(4, [&] { return torch::randn(shape) * 2 + 7; });
  };
  check_beside_whole_batch<BatchNorm1d, SyncBatchNorm1d>(random({6, 4}));
  check_beside_whole_batch<BatchNorm1d, SyncBatchNorm1d>(random({6, 4, 5}));
  check_beside_whole_batch<BatchNorm2d, SyncBatchNorm2d>(random({6, 4, 5, 3}));
  check_beside_whole_batch<BatchNorm2d, SyncBatchNorm2d>(random({6, 4, 5, 3}), /*affine=*/false);
  const at::Tensor volumes = random({6, 4, 5, 3, 2});
  check_beside_whole_batch<BatchNorm3d, SyncBatchNorm3d>(volumes);
  check_beside_whole_batch<BatchNorm3d, SyncBatchNorm3d>(
      volumes.contiguous(at::MemoryFormat::ChannelsLast3d));
}

// The sums of backward as LibTorch's kernels for CUDA give them
// (ATen/native/cuda/Normalization.cuh): without a weight those for channels-last memory return
// none, and the others throw.
std::tuple<at::Tensor, at::Tensor, at::Tensor> sums_as_on_cuda(
    const at::Tensor& dy, const at::Tensor& x, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& invstd, bool train,
    double eps, std::array<bool, 3> wanted) {
  const bool sums = wanted[1] || wanted[2];
  if (sums && !(weight && weight->defined())) return {{}, at::empty({0}), at::empty({0})};
  return at::native::batch_norm_backward_cpu(dy, x, weight, running_mean, running_var, mean, invstd,
                                             train, eps, wanted);
}

TEST_CASE("without weights of its own backward is that of the whole batch, on CUDA too",
          "[worker][sync_bn]") {
  torch::Library kernels(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  kernels.impl("native_batch_norm_backward", sums_as_on_cuda);
  const at::Tensor images = seeded(4, [] { return torch::randn({6, 4, 5, 3}) * 2 + 7; });
  check_beside_whole_batch<BatchNorm2d, SyncBatchNorm2d>(images, /*affine=*/true);
  check_beside_whole_batch<BatchNorm2d, SyncBatchNorm2d>(images, /*affine=*/false);
}

TEST_CASE("inputs that a batch normalisation does not take are refused", "[worker][sync_bn]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    const BatchNormGroup group{reduction_queue_of(communicator, at::kCPU), communicator.rank(), 2};
    if (communicator.rank() == 0) {
      torch::nn::BatchNorm3d norm(4);
      sync_batch_norm(*norm, torch::ones({2, 4, 3, 3}), group);
    } else {
      torch::nn::BatchNorm1d norm(4);
      sync_batch_norm(*norm, torch::ones({2, 5}), group);
    }
  });
  CHECK(message_of<c10::Error>(errors[0]).find("expects [N, 4, D, H, W], got [2, 4, 3, 3]") !=
        std::string::npos);
  CHECK(message_of<c10::Error>(errors[1]).find("expects [N, 4] or [N, 4, L], got [2, 5]") !=
        std::string::npos);
}

TEST_CASE("second derivatives through SyncBatchNorm are refused", "[worker][sync_bn]") {
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    const BatchNormGroup group{reduction_queue_of(communicator, at::kCPU), communicator.rank(),
                               communicator.world_size()};
    BatchNorm2d norm = make_norm();
    const at::Tensor x = images().requires_grad_();
    const at::Tensor loss = sync_batch_norm(*norm, x, group).pow(3).mean();
    std::string message;
    try {
      torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
    }
    RANK_CHECK(message.find("second derivatives") != std::string::npos);
    torch::autograd::grad({loss}, {x});  // What was refused has left nothing behind.
  });
}

struct NormedNetImpl : torch::nn::Module {
  explicit NormedNetImpl(BatchNormGroup norm_group) : group(std::move(norm_group)) {
    conv1 = register_module("conv1", torch::nn::Conv2d(3, 4, 3));
    norm = register_module("norm", BatchNorm2d(4));
    conv2 = register_module("conv2", torch::nn::Conv2d(4, 4, 3));
    synced = register_module("synced", SyncBatchNorm2d(BatchNorm2dOptions(4), group));
  }
  at::Tensor forward(const at::Tensor& x) {
    return synced(conv2(sync_batch_norm(*norm, conv1(x), group).relu())).relu().mean({2, 3});
  }
  BatchNormGroup group;
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  BatchNorm2d norm{nullptr};
  SyncBatchNorm2d synced{nullptr};
};
TORCH_MODULE(NormedNet);

TEST_CASE("with SyncBatchNorm two ranks train as one rank with the double batch",
          "[worker][sync_bn][ddp]") {
  const auto train = [](NormedNet& net, auto&& forward, const at::Tensor& x) {
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      forward(x).pow(2).mean().backward();
      optimizer.step();
    }
  };
  const at::Tensor x = seeded(4, [] { return torch::randn({8, 3, 8, 8}); });
  NormedNet alone = seeded(3, [] { return NormedNet(BatchNormGroup{}); });
  train(
      alone, [&](const at::Tensor& batch) { return alone->forward(batch); }, x);

  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    DataParallelOptions options;
    options.buckets = {64, 256, 64};  // Many buckets between the reductions of the statistics.
    options.queue = reduction_queue_of(communicator, at::kCPU);
    const BatchNormGroup group{options.queue, communicator.rank(), 2};
    NormedNet net = seeded(3, [&] { return NormedNet(group); });
    DistributedDataParallel ddp(net, communicator, options);

    train(
        net, [&](const at::Tensor& batch) { return ddp.forward(batch); },
        x.narrow(0, 4 * communicator.rank(), 4));

    const auto mine = net->named_parameters();
    for (const auto& item : alone->named_parameters()) {
      RANK_CHECK(near(mine[item.key()], item.value(), 1e-4));
    }
    RANK_CHECK(near(net->synced->running_var, alone->synced->running_var, 1e-4));
  });
}

TEST_CASE("ranks whose batches differ in size train as one rank with all images",
          "[worker][sync_bn][ddp]") {
  const std::vector<std::int64_t> ends{5, 8, 9, 9};  // 5, 3, 1 and no image at all.
  const int ranks = static_cast<int>(ends.size());
  const auto train = [](NormedNet& net, auto&& forward, const at::Tensor& x, double share) {
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      (forward(x).pow(2).sum() * share).backward();
      optimizer.step();
    }
  };
  const at::Tensor x = seeded(4, [] { return torch::randn({9, 3, 8, 8}); });
  NormedNet alone = seeded(3, [] { return NormedNet(BatchNormGroup{}); });
  train(
      alone, [&](const at::Tensor& batch) { return alone->forward(batch); }, x, 1.0 / 36);

  run_ranks_well(ranks, [&](ThreadCommunicator& communicator) {
    DataParallelOptions options;
    options.queue = reduction_queue_of(communicator, at::kCPU);
    const auto rank = static_cast<std::size_t>(communicator.rank());
    NormedNet net = seeded(3, [] { return NormedNet(BatchNormGroup{}); });
    net->group = {options.queue, communicator.rank(), ranks};
    RANK_CHECK(synchronize_batch_norms(*net, net->group) == 1);
    DistributedDataParallel ddp(net, communicator, options);
    const std::int64_t begin = rank == 0 ? 0 : ends[rank - 1];

    // Each rank's share of one mean: what is averaged over ranks is their sum.
    train(
        net, [&](const at::Tensor& batch) { return ddp.forward(batch); },
        x.narrow(0, begin, ends[rank] - begin), ranks / 36.0);

    const auto mine = net->named_parameters();
    for (const auto& item : alone->named_parameters()) {
      RANK_CHECK(near(mine[item.key()], item.value(), 1e-4));
    }
    RANK_CHECK(near(net->norm->running_mean, alone->norm->running_mean, 1e-4));
  });
}

// Two convolutions and norms that take a group later, as a model of `train` does.
struct ReplicaNetImpl : torch::nn::Module {
  ReplicaNetImpl() {
    conv1 = register_module("conv1", torch::nn::Conv2d(3, 4, 3));
    norm1 = register_module("norm1", SyncBatchNorm2d(BatchNorm2dOptions(4)));
    conv2 = register_module("conv2", torch::nn::Conv2d(4, 4, 3));
    norm2 = register_module("norm2", SyncBatchNorm2d(BatchNorm2dOptions(4)));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (before_norm) before_norm(x);
    return norm2(conv2(norm1(conv1(x)).relu())).relu().mean({2, 3});
  }
  std::function<void(const at::Tensor&)> before_norm;
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  SyncBatchNorm2d norm1{nullptr}, norm2{nullptr};
};

std::shared_ptr<ReplicaNetImpl> replica_net(std::uint64_t seed) {
  return seeded(seed, [] { return std::make_shared<ReplicaNetImpl>(); });
}

// As `train --data-parallel`'s.
struct ReplicatedImpl : torch::nn::Module {
  ReplicatedImpl(const std::shared_ptr<ReplicaNetImpl>& net, std::size_t replicas)
      : parallel(register_module("net", net), std::vector<at::Device>(replicas, at::kCPU),
                 [] { return replica_net(5); }) {}
  at::Tensor forward(const at::Tensor& x) { return parallel.forward(x); }
  DataParallel<ReplicaNetImpl> parallel;
};

template <class Forward>
void train_some(torch::nn::Module& net, Forward&& forward, const at::Tensor& x, double share) {
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    (forward(x).pow(2).sum() * share).backward();
    optimizer.step();
  }
}

void check_equal_nets(const ReplicaNetImpl& net, const ReplicaNetImpl& alone) {
  const auto parameters = net.named_parameters(), buffers = net.named_buffers();
  for (const auto& item : alone.named_parameters()) {
    RANK_CHECK(near(parameters[item.key()], item.value(), 1e-4));
  }
  for (const auto& item : alone.named_buffers()) {
    RANK_CHECK(near(buffers[item.key()], item.value(), 1e-4));
  }
}

TEST_CASE("replicas of several ranks normalise and train as one rank with all images",
          "[worker][sync_bn][dp][ddp]") {
  // Where each rank's images end: 7 and 4 over three replicas are 3 + 3 + 1 and 2 + 2; 1 and none
  // leave replicas without a part.
  for (const std::vector<std::int64_t>& ends :
       std::vector<std::vector<std::int64_t>>{{11}, {7, 11}, {10, 11}, {6, 11, 11}}) {
    const int ranks = static_cast<int>(ends.size());
    const at::Tensor x = seeded(4, [] { return torch::randn({11, 3, 8, 8}) + 2; });
    const auto alone = replica_net(3);
    const double share = 1.0 / 44;
    train_some(
        *alone, [&](const at::Tensor& batch) { return alone->forward(batch); }, x, share);

    run_ranks_well(ranks, [&](ThreadCommunicator& communicator) {
      DataParallelOptions options;
      options.buckets = {64, 256, 64};
      options.queue = reduction_queue_of(communicator, at::kCPU);
      const auto rank = static_cast<std::size_t>(communicator.rank());
      const auto net = replica_net(3);
      const auto replicated = std::make_shared<ReplicatedImpl>(net, 3);
      RANK_CHECK(replicated->parallel.synchronize_batch_norms(
                     {options.queue, communicator.rank(), ranks}) == 2);
      DistributedDataParallel ddp(replicated, communicator, options);
      const std::int64_t begin = rank == 0 ? 0 : ends[rank - 1];

      train_some(
          *net, [&](const at::Tensor& batch) { return ddp.forward(batch); },
          x.narrow(0, begin, ends[rank] - begin), ranks * share);

      check_equal_nets(*net, *alone);
    });
  }
}

TEST_CASE("a backward after the next forward meets with its own number of replicas",
          "[worker][sync_bn][dp]") {
  const at::Tensor x = seeded(4, [] { return torch::randn({7, 3, 8, 8}); });
  const auto gradients = [&](const std::shared_ptr<ReplicaNetImpl>& net, auto&& forward) {
    const at::Tensor first = forward(x), second = forward(x.narrow(0, 0, 1));  // 3 parts, then 1.
    first.pow(2).sum().backward();
    second.pow(2).sum().backward();
    return net->conv1->weight.grad();
  };
  const auto alone = replica_net(3), net = replica_net(3);
  ReplicatedImpl replicated(net, 3);
  replicated.parallel.synchronize_batch_norms({});

  CHECK(near(gradients(net, [&](const at::Tensor& b) { return replicated.forward(b); }),
             gradients(alone, [&](const at::Tensor& b) { return alone->forward(b); }), 1e-4));
}

TEST_CASE("what one replica throws leaves forward, and those who wait for it are released",
          "[worker][sync_bn][dp]") {
  const at::Tensor x = seeded(4, [] { return torch::randn({6, 3, 8, 8}); });
  for (const double culprit : {0.0, 2.0, 4.0}) {  // The first image of each replica's part.
    at::Tensor marked = x.clone();
    for (int i = 0; i < 6; i += 2) marked[i].fill_(i);
    std::atomic<bool> failing = true;
    const auto make = [&] {
      auto replica = replica_net(3);
      replica->before_norm = [&](const at::Tensor& part) {
        if (failing && part[0][0][0][0].item<double>() == culprit) {
          throw std::runtime_error("no memory for it");
        }
      };
      return replica;
    };
    DataParallel<ReplicaNetImpl> parallel(make(), {at::kCPU, at::kCPU, at::kCPU}, make);
    parallel.synchronize_batch_norms({});

    CHECK_THROWS_WITH(parallel.forward(marked), "no memory for it");
    failing = false;
    CHECK(parallel.forward(marked).size(0) == 6);
  }
}

TEST_CASE("who waits for a meeting whose computation fails is released", "[worker][sync_bn][dp]") {
  // In threads that do not say that they leave, as autograd's of several GPUs.
  ReplicaMeeting meeting(std::chrono::seconds(30));
  meeting.begin(2);
  const at::Tensor mine = torch::ones({1});
  auto other = std::async(std::launch::async, [&] { meeting.meet(1, 2, mine, nullptr); });
  CHECK_THROWS_WITH(
      meeting.meet(0, 2, mine,
                   [](const auto&) -> at::Tensor { throw std::runtime_error("a peer has died"); }),
      "a peer has died");
  CHECK_THROWS_WITH(other.get(), "a replica ended while another waited for replica 0");
}

TEST_CASE("replicas of one device cannot meet in autograd's one thread", "[worker][sync_bn][dp]") {
  const auto net = replica_net(3), other = replica_net(3);
  DataParallelReplicas replicas({net, other}, {at::kCPU, at::kCPU},
                                DataParallelReplicas::Backward::Autograd);
  CHECK_THROWS_AS(replicas.synchronize_batch_norms({}), std::invalid_argument);
}

// In backward a branch comes before the norm.
struct NormedBranchesImpl : torch::nn::Module {
  explicit NormedBranchesImpl(const BatchNormGroup& group) {
    norm = register_module("norm", SyncBatchNorm2d(BatchNorm2dOptions(3), group));
    left = register_module("left", torch::nn::Conv2d(3, 4, 3));
    right = register_module("right", torch::nn::Conv2d(3, 4, 3));
  }
  at::Tensor forward(const at::Tensor& x, bool use_left) {
    const at::Tensor normed = norm(x);
    return (use_left ? left : right)(normed).pow(2).mean();
  }
  SyncBatchNorm2d norm{nullptr};
  torch::nn::Conv2d left{nullptr}, right{nullptr};
};
TORCH_MODULE(NormedBranches);

TEST_CASE("ranks that use different branches keep one order of buckets and statistics",
          "[worker][sync_bn][ddp][unused]") {
  const auto gradients = [](ThreadCommunicator& communicator, BucketLimits buckets) {
    DataParallelOptions options;
    options.buckets = buckets;
    options.find_unused_parameters = true;
    options.queue = reduction_queue_of(communicator, at::kCPU);
    const BatchNormGroup group{options.queue, communicator.rank(), 2};
    NormedBranches net = seeded(3, [&] { return NormedBranches(group); });
    DistributedDataParallel ddp(net, communicator, options);
    const at::Tensor x = seeded(4, [] { return torch::randn({8, 3, 8, 8}); });
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp.forward(x.narrow(0, 4 * communicator.rank(), 4), (communicator.rank() + step) % 2 == 0)
          .backward();
    }
    return std::vector<at::Tensor>{net->norm->weight.grad().clone(),
                                   net->left->weight.grad().clone(),
                                   net->right->bias.grad().clone()};
  };
  run_ranks_well(2, [&](ThreadCommunicator& communicator) {
    const auto small = gradients(communicator, {16, 64, 16});
    const auto whole = gradients(communicator, BucketLimits::whole_step());
    for (std::size_t i = 0; i < small.size(); ++i) RANK_CHECK(near(small[i], whole[i]));
  });
}

TEST_CASE("a clone of a Sequential with SyncBatchNorm normalises as the original",
          "[worker][sync_bn]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    const BatchNormGroup group{reduction_queue_of(communicator, at::kCPU), communicator.rank(), 2};
    torch::nn::Sequential net(seeded(3, [] { return torch::nn::Conv2d(4, 4, 1); }),
                              SyncBatchNorm2d(BatchNorm2dOptions(4), group));
    const at::Tensor x = images().narrow(0, 3 * communicator.rank(), 3);
    net->forward(x);
    auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
    RANK_CHECK(clone->ptr(1)->as<SyncBatchNorm2dImpl>()->is_synchronized());
    RANK_CHECK(at::equal(clone->forward(x), net->forward(x)));
    const auto buffers = net->named_buffers(), cloned = clone->named_buffers();
    for (const auto& item : buffers) {
      RANK_CHECK(at::equal(cloned[item.key()], item.value()));
      RANK_CHECK(cloned[item.key()].data_ptr() != item.value().data_ptr());
    }

    clone->eval();
    clone->forward(x).sum().backward();  // Of memory of its own.
    RANK_CHECK(!net->parameters().back().grad().defined());
    clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(clone->clone());
    RANK_CHECK(!clone->ptr(1)->is_training());
  });
}

TEST_CASE("SyncBatchNorm has BatchNorm2d's parameters and its evaluation mode",
          "[worker][sync_bn]") {
  SyncBatchNorm2d synced(BatchNorm2dOptions(4), BatchNormGroup{nullptr, 0, 2});
  BatchNorm2d plain(4);

  CHECK(synced->named_parameters().keys() == plain->named_parameters().keys());
  CHECK(synced->named_buffers().keys() == plain->named_buffers().keys());
  synced->eval();
  plain->eval();
  CHECK(at::equal(synced(images()), plain(images())));
}

TEST_CASE("bfloat16 images are normalised with statistics in float", "[worker][sync_bn]") {
  run_ranks_well(2, [](ThreadCommunicator& communicator) {
    const BatchNormGroup group{reduction_queue_of(communicator, at::kCPU), communicator.rank(), 2};
    BatchNorm2d norm = make_norm();
    at::Tensor x = images().to(at::kBFloat16).requires_grad_();

    const at::Tensor y = sync_batch_norm(*norm, x, group);
    y.sum().backward();

    RANK_CHECK(y.scalar_type() == at::kBFloat16);
    RANK_CHECK(x.grad().scalar_type() == at::kBFloat16);
    RANK_CHECK(norm->weight.grad().scalar_type() == at::kFloat);
    const at::Tensor rounded = images().to(at::kBFloat16).to(at::kFloat);
    RANK_CHECK(near(y.to(at::kFloat), make_norm()->forward(rounded), 0.05));
  });
}

TEST_CASE("one value per channel over all ranks is an error", "[worker][sync_bn]") {
  const auto errors = run_ranks(2, [](ThreadCommunicator& communicator) {
    const BatchNormGroup group{reduction_queue_of(communicator, at::kCPU), communicator.rank(), 2};
    BatchNorm2d norm = make_norm();
    sync_batch_norm(*norm, torch::ones({1 - communicator.rank(), 4, 1, 1}), group);
  });

  CHECK(message_of<c10::Error>(errors[0]).find("more than one value per channel") !=
        std::string::npos);
  CHECK(message_of<c10::Error>(errors[1]).find("more than one value per channel") !=
        std::string::npos);
}

}  // namespace
}  // namespace ddprun::worker
