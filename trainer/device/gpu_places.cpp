// Apart from device.cpp, so that the arithmetic of places is tested on machines without a GPU.
#include "trainer/device/gpu_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace ddprun::trainer {
namespace {

std::string own_gpus(const GpuWishes& wishes) {
  return wishes.data_parallel > 1 ? fmt::format("{} GPUs", wishes.data_parallel) : "GPU";
}

}  // namespace

std::string gpu_problem(const GpuWishes& wishes, int local_rank, int gpus_there) {
  const int needed = wishes.share ? 1 : (local_rank + 1) * wishes.data_parallel;
  if (!wishes.gpu_ids.empty()) {
    if (needed > static_cast<int>(wishes.gpu_ids.size())) {
      return fmt::format("--gpu-ids names {} GPUs, too few for local rank {} with {}",
                         wishes.gpu_ids.size(), local_rank, wishes.data_parallel);
    }
    const int highest = *std::max_element(wishes.gpu_ids.begin(), wishes.gpu_ids.end());
    if (highest < gpus_there) return "";
    return fmt::format("--gpu-ids names GPU {}, but there are {}", highest, gpus_there);
  }
  if (needed <= gpus_there) return "";
  return fmt::format("local rank {} has no {} of its own: there are {}", local_rank,
                     own_gpus(wishes), gpus_there);
}

std::string gpu_advice(const GpuWishes& wishes, int gpus_there,
                       const std::string& visible_devices) {
  // ddprun counts all that are listed.
  if (visible_devices.starts_with("MIG-") && visible_devices.find(',') != std::string::npos) {
    return "CUDA shows a process one MIG device alone: ddprun --virtual-local-rank gives each "
           "worker another one";
  }
  const int usable = wishes.gpu_ids.empty() ? gpus_there : static_cast<int>(wishes.gpu_ids.size());
  if (wishes.data_parallel > usable) {
    return fmt::format("--data-parallel can be {} at most", usable);
  }
  if (wishes.data_parallel > 1 || !wishes.gpu_ids.empty()) {
    return fmt::format(
        "start at most {0} workers here (ddprun --nproc-per-node {0}), each with its {1}",
        usable / wishes.data_parallel, own_gpus(wishes));
  }
  return "start as many workers as there are GPUs (ddprun --nproc-per-node gpu)";
}

std::vector<int> gpus_of(const GpuWishes& wishes, int local_rank) {
  if (wishes.share) local_rank = 0;
  std::vector<int> gpus;
  for (int i = 0; i < wishes.data_parallel; ++i) {
    const int place = local_rank * wishes.data_parallel + i;
    gpus.push_back(wishes.gpu_ids.empty() ? place
                                          : wishes.gpu_ids.at(static_cast<std::size_t>(place)));
  }
  return gpus;
}

std::vector<std::pair<std::string, std::string>> shared_gpu_variables(int rank) {
  return {{"NCCL_HOSTID", fmt::format("h{}", rank)},
          {"NCCL_NET", "Socket"},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_P2P_DISABLE", "1"},
          {"NCCL_SHM_DISABLE", "1"},
          // Kernels of two ranks must fit the device at the same time.
          {"NCCL_MAX_CTAS", "2"}};
}

}  // namespace ddprun::trainer
