// A loop of the worker library on a GPU of its own, as a user's program has it. argv[1] says what
// else is in it, argv[2] a file to write.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "worker/communicator_modules.h"
#include "worker/torch/choose_device.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/hooks/narrow_gradients.h"
#include "worker/torch/hooks/power_sgd.h"
#include "worker/torch/sync_batch_norm.h"
#include "worker/torch/tensor_collectives.h"
#include "worker/torch/zero/zero_redundancy_optimizer.h"

using namespace ddprun::worker;

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    fc = register_module("fc", torch::nn::Linear(8, 5));
    unused = register_module("unused", torch::nn::Linear(8, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return fc(norm(conv(x)).relu().mean({2, 3})); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr}, unused{nullptr};
};

struct Loop {
  at::Device device;
  Communicator& communicator;
  std::shared_ptr<NetImpl> net = std::make_shared<NetImpl>();
  DataParallelOptions options;
  std::function<void()> update = {};

  void run(int steps) {
    DistributedDataParallel<NetImpl> ddp(net, communicator, options);
    for (int step = 0; step < steps; ++step) {
      const at::Tensor images = torch::randn({4, 3, 8, 8}).to(device);
      const at::Tensor labels = torch::zeros({4}, torch::kLong).to(device);
      ddp.zero_grad();
      {
        const DistributedDataParallelBase::NoSync local(ddp);
        torch::nn::functional::cross_entropy(ddp.forward(images), labels).backward();
      }
      torch::nn::functional::cross_entropy(ddp.forward(images), labels).backward();
      if (update) update();
    }
    communicator.barrier(current_stream(device));
  }
};

void run_part(const std::string& part, const std::string& file, const WorkerEnv& env,
              at::Device device, Communicator& communicator) {
  Loop loop{.device = device, .communicator = communicator};
  loop.net->to(device);
  loop.options.find_unused_parameters = true;
  const std::map<std::string, std::function<void()>> parts{
      {"plain", [&] { loop.run(6); }},
      {"own_stream",
       [&] {
         const c10::impl::VirtualGuardImpl guard(device.type());
         const c10::StreamGuard on(guard.getStreamFromGlobalPool(device, false));
         loop.run(6);
       }},
      {"sync_bn",
       [&] {
         loop.options.queue = reduction_queue_of(communicator, device);
         synchronize_batch_norms(*loop.net, {loop.options.queue, env.rank, env.world_size});
         loop.run(6);
       }},
      {"narrow",
       [&] {
         loop.options.communication_hook = std::make_shared<NarrowGradients>(at::kHalf);
         loop.run(6);
       }},
      {"power_sgd",
       [&] {
         loop.options.communication_hook =
             std::make_shared<PowerSgd>(PowerSgdOptions{.rank = 1, .start_step = 2});
         loop.run(6);
       }},
      {"zero",
       [&] {
         ZeroRedundancyOptimizer optimizer(loop.net->parameters(), communicator, [](auto groups) {
           return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(1e-3));
         });
         loop.update = [&] { optimizer.step(); };
         loop.run(3);
         optimizer.consolidate();
         if (env.rank == 0) torch::save(optimizer, file);
         communicator.barrier(current_stream(device));
         torch::load(optimizer, file, at::kCPU);
         loop.run(3);
       }},
  };
  parts.at(part)();
}

}  // namespace

int main(int, char** argv) {
  try {
    const WorkerEnv env = read_worker_env();
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(env.local_rank));
    CommunicatorOptions options;
    options.cuda_device = device.index();
    open_cuda_module();
    choose_device(device);
    const auto communicator = make_nccl_communicator(env, options);
    run_part(argv[1], argv[2], env, device, *communicator);
    std::cout << "right: " << argv[1] << std::endl;
  } catch (const std::exception& error) {
    std::cout << "failed: " << argv[1] << ": " << error.what() << std::endl;
    return 1;
  }
}
