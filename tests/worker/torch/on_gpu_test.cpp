// What DistributedDataParallel does on a GPU, over NCCL, beside the same on the CPU. LibTorch's
// kernels for CUDA take other tensors than those of the CPU, queues and hooks work on streams
// there, and no case without a GPU shows either. A rank alone: what it adds up is its own.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <map>

#include "tests/testing/catch.h"
#include "tests/worker/torch/no_gpu.h"
#include "tests/worker/torch/small_net.h"
#include "worker/communicator_modules.h"
#include "worker/torch/choose_device.h"
#include "worker/torch/hooks/narrow_gradients.h"
#include "worker/torch/hooks/power_sgd.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::worker {
namespace {

using Results = std::vector<at::Tensor>;  // On the CPU.

const at::Device cpu(at::kCPU), gpu(at::kCUDA, 0);

// Where a case computes: on a GPU on a stream that waits for no other.
struct Place {
  explicit Place(at::Device on) : device(on) {
    CommunicatorOptions options;
    if (on.is_cpu()) {
      communicator = make_cpu_communicator(WorkerEnv{}, options);
      return;
    }
    choose_device(on);
    at::globalContext().setAllowTF32CuDNN(false);
    const c10::impl::VirtualGuardImpl guard(on.type());
    stream.emplace(guard.getStreamFromGlobalPool(on, /*isHighPriority=*/false));
    options.cuda_device = on.index();
    communicator = make_nccl_communicator(WorkerEnv{}, options);
  }

  at::Device device;
  std::optional<c10::StreamGuard> stream;
  std::unique_ptr<Communicator> communicator;
};

struct Normalized {
  // On that device, where a copy would have no gaps.
  at::Tensor on(at::Device device) const {
    const at::Tensor there = images.to(device);
    return gaps ? torch::cat({there, there}, 3).narrow(3, 2, images.size(3)) : there;
  }

  std::string name;
  at::Tensor images;
  bool affine = true;
  bool gaps = false;  // In memory.
};

std::vector<Normalized> normalized_batches() {
  const at::Tensor images = seeded(3, [] { return torch::randn({6, 8, 5, 3}) * 2 + 7; });
  const at::Tensor last = images.contiguous(at::MemoryFormat::ChannelsLast);
  std::vector<Normalized> batches;
  for (const bool affine : {true, false}) {
    batches.push_back({"planes", images, affine});
    batches.push_back({"channels last", last, affine});
    batches.push_back({"gaps in memory", images, affine, /*gaps=*/true});
    batches.push_back({"planes, half", images.to(at::kHalf), affine});
    batches.push_back({"channels last, bfloat16", last.to(at::kBFloat16), affine});
  }
  return batches;
}

// Result, gradient, and running statistics: by `Norm`, whose peer, if it has one, has no images.
template <class Norm>
Results normalize(at::Device device, const Normalized& batch) {
  const Place place(device);
  Norm norm(torch::nn::BatchNormOptions(batch.images.size(1)).affine(batch.affine));
  norm->to(device);
  if constexpr (std::is_same_v<Norm, SyncBatchNorm2d>) {
    norm->set_group({reduction_queue_of(*place.communicator, device), /*rank=*/0, 2});
  }
  const at::Tensor x = batch.on(device).detach().requires_grad_();
  const at::Tensor weights = seeded(5, [&] { return torch::randn(batch.images.sizes()); });
  const at::Tensor y = norm->forward(x);
  (y.to(at::kFloat) * weights.to(device)).sum().backward();
  Results results{y, x.grad(), norm->running_mean, norm->running_var};
  if (batch.affine) {
    results.push_back(norm->weight.grad());
    results.push_back(norm->bias.grad());
  }
  for (at::Tensor& result : results) result = result.detach().to(cpu, at::kFloat);
  return results;
}

// Gradients of some steps of a small net, whose gradients travel as the options say.
using Options = std::function<DataParallelOptions()>;
Results gradients_of_steps(at::Device device, const Options& options) {
  const Place place(device);
  DataParallelOptions chosen = options();
  chosen.reduce_world_of_one = true;
  chosen.buckets = tiny_buckets;
  SmallNet net = seeded(1, [] { return SmallNet(); });
  net->to(device);
  DistributedDataParallel ddp(net, *place.communicator, chosen);
  Results results;
  for (int step = 0; step < 4; ++step) {
    Batch batch = random_batch(10 + static_cast<std::uint64_t>(step), 6);
    batch = {batch.images.to(device), batch.labels.to(device)};
    ddp.zero_grad();
    loss_of(ddp.forward(batch.images), batch).backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) {
      results.push_back(parameter.grad().to(cpu, at::kFloat));
      parameter.sub_(parameter.grad(), 0.1);
    }
  }
  return results;
}

const std::map<std::string, Options> ways{
    {"as they are", [] { return DataParallelOptions{}; }},
    {"as bfloat16",
     [] {
       DataParallelOptions options;
       options.communication_hook = std::make_shared<NarrowGradients>(at::kBFloat16);
       return options;
     }},
    {"as half",
     [] {
       DataParallelOptions options;
       options.communication_hook = std::make_shared<NarrowGradients>(at::kHalf);
       return options;
     }},
    {"as thin matrices",
     [] {
       DataParallelOptions options;
       options.communication_hook = std::make_shared<PowerSgd>(
           PowerSgdOptions{.rank = 2, .start_step = 1, .min_compression = 1});
       return options;
     }},
    {"where some might be unused",
     [] {
       DataParallelOptions options;
       options.find_unused_parameters = true;
       return options;
     }},
};

// By the norm of each: rounding of a sum's terms is no matter of its smallest elements.
void check_near(const Results& found, const Results& expected, double tolerance) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO("result " << i);
    CHECK((found[i] - expected[i]).norm().item<double>() <=
          tolerance * (1 + expected[i].norm().item<double>()));
  }
}

double tolerance_of(const at::Tensor& images) {
  return images.scalar_type() == at::kFloat ? 1e-4 : 2e-2;
}

}  // namespace

TEST_CASE("a rank whose peer has no images normalises as one alone", "[ddp]") {
  for (const Normalized& batch : normalized_batches()) {
    INFO(batch.name << ", affine " << batch.affine);
    check_near(normalize<SyncBatchNorm2d>(cpu, batch),
               normalize<torch::nn::BatchNorm2d>(cpu, batch), tolerance_of(batch.images));
  }
}

TEST_CASE("gradients of a rank alone are its own however they travel", "[ddp]") {
  const Results expected = gradients_of_steps(cpu, ways.at("as they are"));
  for (const char* way : {"as bfloat16", "as half", "where some might be unused"}) {
    INFO(way);
    check_near(gradients_of_steps(cpu, ways.at(way)), expected, 1e-2);
  }
}

TEST_CASE("on a GPU ranks normalise together as on the CPU", "[ddp][gpu]") {
  if (const std::string why = no_gpu(); !why.empty()) DDPRUN_SKIP(why);
  for (const Normalized& batch : normalized_batches()) {
    INFO(batch.name << ", affine " << batch.affine);
    check_near(normalize<SyncBatchNorm2d>(gpu, batch), normalize<SyncBatchNorm2d>(cpu, batch),
               tolerance_of(batch.images));
  }
}

TEST_CASE("on a GPU gradients travel as on the CPU, in each way", "[ddp][gpu]") {
  if (const std::string why = no_gpu(); !why.empty()) DDPRUN_SKIP(why);
  for (const auto& [way, options] : ways) {
    INFO(way);
    check_near(gradients_of_steps(gpu, options), gradients_of_steps(cpu, options), 1e-2);
  }
}

}  // namespace ddprun::worker
