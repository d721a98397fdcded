// The only place that decides between CUDA and the CPU, and says why it is not CUDA.
#include "trainer/device.h"

#include <fmt/format.h>
#include <malloc.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "worker/communicator_modules.h"
#include "worker/network_interface.h"

namespace ddprun::trainer {
namespace {

constexpr int heap_growth_bytes = 64 << 20;

// Why no GPU can be used; "" when one can. Loads the CUDA module, which LibTorch must not be asked
// about CUDA before.
std::string reason_against_cuda(const TrainOptions& options, const worker::WorkerEnv& env) {
  const int replicas = options.data_parallel;
  std::error_code ignored;
  if (!std::filesystem::exists("/dev/nvidiactl", ignored)) {
    return "this machine has no NVIDIA device (/dev/nvidiactl is missing)";
  }
  try {
    worker::open_cuda_module();
  } catch (const worker::CommunicatorError& error) {
    return error.what();
  }
  if (!torch::cuda::is_available()) return "LibTorch finds no usable GPU; does nvidia-smi?";
  const c10::DeviceIndex devices = torch::cuda::device_count();
  if (!options.gpu_ids.empty()) {
    if (std::size_t(env.local_rank + 1) * std::size_t(replicas) > options.gpu_ids.size()) {
      return fmt::format("--gpu-ids names {} GPUs, too few for local rank {} with {}",
                         options.gpu_ids.size(), env.local_rank, replicas);
    }
    const int highest = *std::max_element(options.gpu_ids.begin(), options.gpu_ids.end());
    if (highest < devices) return "";
    return fmt::format("--gpu-ids names GPU {}, but there are {}", highest, devices);
  }
  if ((env.local_rank + 1) * replicas > devices) {
    return fmt::format("local rank {} has no {} of its own: there are {}", env.local_rank,
                       replicas > 1 ? fmt::format("{} GPUs", replicas) : "GPU", devices);
  }
  return "";
}

// The worker's GPUs are `data_parallel` neighbours, or those of --gpu-ids; gradients travel from
// and to the first.
DeviceAndPeers open_cuda(const TrainOptions& options, const worker::WorkerEnv& env) {
  const auto gpu = [&](int replica) {
    const int place = env.local_rank * options.data_parallel + replica;
    return options.gpu_ids.empty() ? place : options.gpu_ids[static_cast<std::size_t>(place)];
  };
  worker::CommunicatorOptions peers = communicator_options(options);
  peers.cuda_device = gpu(0);
  if (!options.interface.empty()) {  // NCCL finds its own way, unless it is told.
    const auto chosen = worker::choose_interface({options.interface, "--interface", false},
                                                 worker::interface_addresses());
    ::setenv("NCCL_SOCKET_IFNAME", ("=" + chosen.interface).c_str(), /*replace=*/0);
  }
  std::vector<torch::Device> devices;
  for (int i = 0; i < options.data_parallel; ++i) {
    devices.emplace_back(torch::kCUDA, static_cast<c10::DeviceIndex>(gpu(i)));
  }
  return {devices.front(), devices, worker::make_nccl_communicator(env, peers)};
}

}  // namespace

void tune_process(const worker::WorkerEnv& env, bool one_thread) {
  // glibc returns every large block to the kernel, and the page faults of getting it back cost
  // 10-25 % of a training step.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, heap_growth_bytes);
  // Numbers next to 0 take a slow path in many processors, and mean nothing to training.
  at::globalContext().setFlushDenormal(true);
  // torchrun's default, also where no launcher has set it: workers would fight for the cores.
  if (std::getenv("OMP_NUM_THREADS") == nullptr && (one_thread || env.local_world_size > 1)) {
    at::set_num_threads(1);
  }
}

worker::CommunicatorOptions communicator_options(const TrainOptions& options) {
  worker::CommunicatorOptions result;
  result.connect_timeout = std::chrono::seconds{options.connect_timeout_s};
  result.connect_timeout_name = "--connect-timeout";
  result.collective_timeout = std::chrono::seconds{options.collective_timeout_s};
  result.collective_timeout_name = "--collective-timeout";
  result.on_slow_wait = [](const std::string& text) {
    std::cerr << "train: warning: " + text + "\n" << std::flush;
  };
  result.interface = options.interface;
  return result;
}

DeviceAndPeers open_device(const TrainOptions& options, const worker::WorkerEnv& env) {
  const bool nccl = options.backend == BackendOption::Nccl;
  const bool required = options.device == DeviceOption::Cuda || nccl;
  const bool wanted =
      required || (options.device == DeviceOption::Auto && options.backend == BackendOption::Auto);
  if (wanted) {
    const std::string reason = reason_against_cuda(options, env);
    if (reason.empty()) return open_cuda(options, env);
    if (required) {
      throw UsageError(fmt::format(
          "--{} cannot be used: {}; give --{} to train on the CPU where no GPU can be used",
          nccl ? "backend nccl" : "device cuda", reason, nccl ? "backend auto" : "device auto"));
    }
  }
  const std::vector<torch::Device> cpus(static_cast<std::size_t>(options.data_parallel),
                                        torch::kCPU);
  if (options.backend == BackendOption::Mpi) {
    return {cpus.front(), cpus, worker::make_mpi_communicator(env, communicator_options(options))};
  }
  if (options.backend == BackendOption::Gloo && env.rank == 0) {
    std::cout << "--backend gloo: there is no Gloo here; the cpu backend takes its place"
              << std::endl;
  }
  return {cpus.front(), cpus, worker::make_cpu_communicator(env, communicator_options(options))};
}

}  // namespace ddprun::trainer
