// Which GPUs of its node a worker uses: `data_parallel` neighbours for each, or in the order of
// --gpu-ids.
// A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <vector>

namespace ddprun::trainer {

struct GpuWishes {
  std::vector<int> gpu_ids;  // --gpu-ids; empty: all there are.
  int data_parallel = 1;     // GPUs of one worker.
};

// Why the worker with this local rank cannot have its GPUs on a node with so many; "" when it can.
std::string gpu_problem(const GpuWishes& wishes, int local_rank, int gpus_there);

// They are there (gpu_problem() found nothing). Gradients travel from and to the first.
std::vector<int> gpus_of(const GpuWishes& wishes, int local_rank);

}  // namespace ddprun::trainer
