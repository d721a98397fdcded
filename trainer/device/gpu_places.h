// Which GPUs of its node a worker uses: `data_parallel` neighbours for each, or in the order of
// --gpu-ids; or all workers the first one, with --share-gpu.
// A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddprun::trainer {

struct GpuWishes {
  std::vector<int> gpu_ids;  // --gpu-ids; empty: all there are.
  int data_parallel = 1;     // GPUs of one worker.
  bool share = false;        // --share-gpu
};

// Why the worker with this local rank cannot have its GPUs on a node with so many; "" when it can.
std::string gpu_problem(const GpuWishes& wishes, int local_rank, int gpus_there);

// What to do about a problem that it found. `visible_devices`: CUDA_VISIBLE_DEVICES, or "".
std::string gpu_advice(const GpuWishes& wishes, int gpus_there, const std::string& visible_devices);

// They are there (gpu_problem() found nothing). Gradients travel from and to the first.
std::vector<int> gpus_of(const GpuWishes& wishes, int local_rank);

// What NCCL must find in the environment of a worker that shares its GPU with others, as names and
// values. NCCL refuses two ranks on one GPU of one host, so that each rank is a host to it; a
// host's own ways (P2P, shared memory) are then not looked for, and sockets are the network.
std::vector<std::pair<std::string, std::string>> shared_gpu_variables(int rank);

}  // namespace ddprun::trainer
