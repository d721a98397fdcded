// Where training computes, and the communicator that goes with it.
#pragma once

#include <memory>
#include <vector>

#include "trainer/options/train_options.h"
#include "worker/communicator.h"
#include "worker/torch/libtorch.h"
#include "worker/worker_env.h"

namespace ddprun::trainer {

struct DeviceAndPeers {
  torch::Device device{torch::kCPU};
  std::vector<torch::Device> replicas{torch::kCPU};  // The first one is `device`.
  std::unique_ptr<worker::Communicator> communicator;
};

// Settings of the whole process, before it allocates tensors: memory stays with the process
// instead of going back to the kernel after each step, denormal numbers count as zero, and one
// computing thread per worker where several share the machine, or where results must not depend on
// how many do; no more than a container's quota has CPUs for a worker alone (unless OMP_NUM_THREADS
// says otherwise).
void tune_process(const worker::WorkerEnv& env, bool one_thread);

// Whether a GPU will compute; loads the CUDA module then, and makes no context. For who asks
// LibTorch for anything before open_device(), which says why where it is a CPU: a seed is enough
// for it to look for CUDA, once for the life of the process.
bool prepare_for_gpu(const TrainOptions& options);

// --tf32 and --cudnn-benchmark: LibTorch's own switches for the whole process, which a CPU ignores.
void set_gpu_arithmetic(const TrainOptions& options);

// How this worker reaches the others, as the command line says.
worker::CommunicatorOptions communicator_options(const TrainOptions& options);

// Connects to the other workers, as `peers` says, with the GPU of local rank `gpu_place`. Throws
// UsageError when `--device cuda` cannot be had, with the reason; worker::CommunicatorError when
// peers cannot be met. --device auto is the CPU on a machine without a usable GPU; all workers must
// come to the same answer, so that one which finds GPUs and none for itself is a UsageError too.
DeviceAndPeers open_device(const TrainOptions& options, const worker::WorkerEnv& env, int gpu_place,
                           const worker::CommunicatorOptions& peers);

}  // namespace ddprun::trainer
