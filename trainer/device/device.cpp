// The only place that decides between CUDA and the CPU, and says why it is not CUDA.
#include "trainer/device/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <torch/cuda.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "trainer/device/gpu_places.h"
#include "worker/communicator_modules.h"
#include "worker/cpus_at_once.h"
#include "worker/network_interface.h"
#include "worker/torch/choose_device.h"
#include "worker/worker_env.h"

namespace ddprun::trainer {
namespace {

constexpr int heap_growth_bytes = 64 << 20;

GpuWishes wishes_of(const TrainOptions& options) {
  return {.gpu_ids = options.gpu_ids,
          .data_parallel = options.data_parallel,
          .share = options.share_gpu};
}

bool requires_gpu(const TrainOptions& options) {
  return options.device == DeviceOption::Cuda || options.backend == BackendOption::Nccl;
}

bool wants_gpu(const TrainOptions& options) {
  return requires_gpu(options) ||
         (options.device == DeviceOption::Auto && options.backend == BackendOption::Auto);
}

// Why this machine has no GPU that can be used; "" when it has one. Loads the CUDA module, which
// LibTorch must not be asked about CUDA before.
std::string reason_against_cuda() {
  std::error_code ignored;
  // dxg: of Windows, below this Linux.
  if (!std::filesystem::exists("/dev/nvidiactl", ignored) &&
      !std::filesystem::exists("/dev/dxg", ignored)) {
    return "this machine has no NVIDIA device (/dev/nvidiactl is missing)";
  }
  try {
    worker::open_cuda_module();
  } catch (const worker::CommunicatorError& error) {
    return error.what();
  }
  if (torch::cuda::is_available()) return "";
  const auto visible = worker::environment_variable("CUDA_VISIBLE_DEVICES");
  if (!visible) return "LibTorch finds no usable GPU; does nvidia-smi?";
  return fmt::format(
      "LibTorch finds no usable GPU where CUDA_VISIBLE_DEVICES is \"{}\"; nvidia-smi lists all, "
      "whatever that says",
      *visible);
}

// The workers of a machine that has GPUs use them all: one that took the CPU since there is none
// left for it would wait for the others, who are to be met over NCCL.
void check_gpus(const TrainOptions& options, int gpu_place) {
  const GpuWishes wishes = wishes_of(options);
  const torch::DeviceIndex gpus_there = torch::cuda::device_count();
  const std::string problem = gpu_problem(wishes, gpu_place, gpus_there);
  if (problem.empty()) return;
  const std::string advice = gpu_advice(
      wishes, gpus_there, worker::environment_variable("CUDA_VISIBLE_DEVICES").value_or(""));
  throw UsageError(fmt::format(
      "{}; {}, or give --device cpu to all, or --share-gpu to try a job on one", problem, advice));
}

// For the rest of the process, and before there is a parameter: CUDA records no default stream, and
// autograd keeps to the stream on which it first saw a parameter.
void leave_default_stream(torch::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.exchangeStream(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
}

DeviceAndPeers open_cuda(const TrainOptions& options, const worker::WorkerEnv& env, int gpu_place,
                         worker::CommunicatorOptions peers) {
  set_gpu_arithmetic(options);
  const std::vector<int> gpus = gpus_of(wishes_of(options), gpu_place);
  // First of all: LibTorch's guards go back to the device before, which is GPU 0 where none was
  // chosen, and would make a context there.
  worker::choose_device({torch::kCUDA, static_cast<c10::DeviceIndex>(gpus.front())});
  peers.cuda_device = gpus.front();
  if (!options.interface.empty()) {  // NCCL finds its own way, unless it is told.
    const auto chosen = worker::choose_interface({options.interface, "--interface", false},
                                                 worker::interface_addresses());
    ::setenv("NCCL_SOCKET_IFNAME", ("=" + chosen.interface).c_str(), /*replace=*/0);
  }
  if (options.share_gpu && env.world_size > 1) {
    if (env.local_world_size != env.world_size) {
      throw UsageError("--share-gpu is for the workers of one host, and this job has others");
    }
    for (const auto& [name, value] : shared_gpu_variables(env.rank)) {
      ::setenv(name.c_str(), value.c_str(), /*replace=*/0);
    }
  }
  std::vector<torch::Device> devices;
  for (const int gpu : gpus) {
    devices.emplace_back(torch::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  }
  if (options.cuda_graph) leave_default_stream(devices.front());
  return {devices.front(), devices, worker::make_nccl_communicator(env, peers)};
}

}  // namespace

bool prepare_for_gpu(const TrainOptions& options) {
  return wants_gpu(options) && reason_against_cuda().empty();
}

void tune_process(const worker::WorkerEnv& env, bool one_thread) {
  // glibc returns every large block to the kernel, and the page faults of getting it back cost
  // 10-25 % of a training step.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, heap_growth_bytes);
  // Numbers next to 0 take a slow path in many processors, and mean nothing to training.
  at::globalContext().setFlushDenormal(true);
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  // torchrun's default, also where no launcher has set it: workers would fight for the cores.
  if (one_thread || env.local_world_size > 1) return at::set_num_threads(1);
  const int threads = worker::cpus_at_once();
  if (threads < at::get_num_threads()) at::set_num_threads(threads);
}

void set_gpu_arithmetic(const TrainOptions& options) {
  at::Context& context = at::globalContext();
  // Of algorithms that are deterministic, each with bits of its own, the one that is measured to be
  // the fastest may be another one at the next start.
  context.setBenchmarkCuDNN(options.cudnn_benchmark.value_or(!options.cudnn_deterministic));
  context.setDeterministicCuDNN(options.cudnn_deterministic);
  if (options.tf32 == Tf32Option::Auto) return;
  context.setAllowTF32CuDNN(options.tf32 == Tf32Option::On);
  context.setAllowTF32CuBLAS(options.tf32 == Tf32Option::On);
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

DeviceAndPeers open_device(const TrainOptions& options, const worker::WorkerEnv& env, int gpu_place,
                           const worker::CommunicatorOptions& peers) {
  if (wants_gpu(options)) {
    const std::string reason = reason_against_cuda();
    if (reason.empty()) {
      check_gpus(options, gpu_place);
      return open_cuda(options, env, gpu_place, peers);
    }
    if (requires_gpu(options)) {
      const bool nccl = options.backend == BackendOption::Nccl;
      throw UsageError(fmt::format(
          "--{} cannot be used: {}; give --{} to train on the CPU where no GPU can be used",
          nccl ? "backend nccl" : "device cuda", reason, nccl ? "backend auto" : "device auto"));
    }
  }
  const std::vector<torch::Device> cpus(static_cast<std::size_t>(options.data_parallel),
                                        torch::kCPU);
  if (options.backend == BackendOption::Mpi) {
    return {cpus.front(), cpus, worker::make_mpi_communicator(env, peers)};
  }
  if (options.backend == BackendOption::Gloo && env.rank == 0) {
    std::cout << "--backend gloo: there is no Gloo here; the cpu backend takes its place"
              << std::endl;
  }
  return {cpus.front(), cpus, worker::make_cpu_communicator(env, peers)};
}

}  // namespace ddprun::trainer
