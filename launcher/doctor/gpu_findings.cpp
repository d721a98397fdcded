// One function for each thing that is looked at, with its threshold.
#include "launcher/doctor/gpu_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "launcher/doctor/machine_findings.h"
#include "rendezvous/counted.h"

namespace ddprun::launcher {
namespace {

using rendezvous::counted;

constexpr std::uint64_t gib = 1 << 30;

// Without anybody a driver has some hundred MiB of it in use.
void examine_gpu_memory(const std::string& name, const GpuState& gpu, FindingList& found) {
  constexpr std::uint64_t least = 2 * gib, least_part = 20;
  if (gpu.memory_used < std::max(least, gpu.memory_total / least_part)) return;
  std::string value =
      fmt::format("{} of {} are in use", size_text(gpu.memory_used), size_text(gpu.memory_total));
  if (!gpu.pids.empty()) value += fmt::format(", by pid {}", gpu.pids.front());
  if (gpu.pids.size() > 1) value += fmt::format(" and {} more", gpu.pids.size() - 1);
  found.amber(name, value, "Workers would miss that memory, and share the GPU's time.",
              "end what an earlier job has left (nvidia-smi names it), or choose others with "
              "CUDA_VISIBLE_DEVICES");
}

// Nothing green: of a machine with eight of them what is well would bury the rest.
void examine_gpu(const GpuState& gpu, FindingList& found) {
  const std::string name = fmt::format("GPU {}", gpu.index);
  if (!gpu.answers) {
    return found.red(
        name, "does not answer NVIDIA's driver", "It was lost, and whoever takes it fails.",
        "look for Xid in the kernel's log (dmesg); nvidia-smi --gpu-reset, or reboot; until "
        "then leave it out of CUDA_VISIBLE_DEVICES");
  }
  if (gpu.is_worn_out) {
    found.red(name, "has no spare memory left in the place of defective one",
              "The next defect ends the worker that meets it, and stays.",
              "replace it (nvidia-smi -q -d ROW_REMAPPER); until then leave it out of "
              "CUDA_VISIBLE_DEVICES");
  } else if (gpu.needs_reset) {
    found.amber(name, "has defective memory that a reset would take out of use",
                "A worker that meets it before is ended by CUDA.",
                "nvidia-smi --gpu-reset while nothing runs on it, or reboot");
  } else if (gpu.memory_errors > 0) {
    found.amber(
        name,
        counted(static_cast<std::int64_t>(gpu.memory_errors), "uncorrectable memory error") +
            " since the driver was loaded",
        "Each ends the worker that meets it.",
        "nvidia-smi -q -d ECC; replace it where they come again");
  }
  if (!gpu.slowed.empty()) {
    found.amber(name, "is slowed down " + gpu.slowed, "A job is as fast as its slowest GPU.",
                "look at its cooling and power supply: nvidia-smi -q -d PERFORMANCE");
  }
  examine_gpu_memory(name, gpu, found);
}

void examine_driver(const GpuFacts& gpu, FindingList& found) {
  if (gpu.driver.empty()) {
    if (gpu.cards > 0) {
      return found.amber(
          "GPUs", counted(gpu.cards, "card") + " of NVIDIA, and no driver is loaded",
          "Without the kernel module nothing can use them.",
          "install the driver and load it: modprobe nvidia; after an update of the kernel "
          "reboot");
    }
    if (gpu.count == 0) return found.green("GPUs", "none");
    return found.amber(
        "GPUs", fmt::format("none, though {} set", counted(gpu.count, "entry is", "entries are")),
        "CUDA_VISIBLE_DEVICES names GPUs, and --nproc-per-node gpu counts its entries.",
        "unset CUDA_VISIBLE_DEVICES, or look for the driver with nvidia-smi");
  }
  std::string value = fmt::format("{}, driver {}", counted(gpu.count, "GPU"), gpu.driver);
  if (!gpu.cuda.empty()) value += ", CUDA " + gpu.cuda;
  if (gpu.count == 0) {
    return found.amber("GPUs", value,
                       "The driver is there, but no device may be used (CUDA_VISIBLE_DEVICES, the "
                       "container's or scheduler's devices).",
                       "in a container --gpus all; under Slurm --gres=gpu:N; look at "
                       "CUDA_VISIBLE_DEVICES");
  }
  if (!gpu.has_driver_library) {
    return found.red(
        "GPUs", value + ", no libcuda.so.1", "The driver is loaded, but programs cannot call it.",
        "in a container --gpus all (NVIDIA's container toolkit); else install the driver's "
        "libraries (Debian: libcuda1)");
  }
  if (!gpu.driver_library.empty() && gpu.driver_library != gpu.driver) {
    return found.red(
        "GPUs", fmt::format("{}, but libcuda is of {}", value, gpu.driver_library),
        "An update has replaced the libraries while the old module is still loaded: CUDA "
        "does not start.",
        "reboot, or unload and load the module nvidia");
  }
  if (gpu.is_silent) {
    return found.red(
        "GPUs", value + ", and NVIDIA's driver does not answer",
        "One of them may have been lost; workers would hang in their first call of CUDA.",
        "look for Xid in the kernel's log (dmesg) and at nvidia-smi; reset the GPU, or reboot");
  }
  found.green("GPUs", value);
  for (const GpuState& state : gpu.states) examine_gpu(state, found);
}

void examine_nccl(const GpuFacts& gpu, FindingList& found) {
  if (!gpu.nccl.empty()) return found.green("NCCL", gpu.nccl);
  // PyTorch's wheels bring one of their own, which the loader's path does not show.
  if (gpu.count > 0) found.green("NCCL", "no libnccl.so.2 on the loader's path");
}

}  // namespace

void examine_gpus(const GpuFacts& gpu, FindingList& found) {
  examine_driver(gpu, found);
  examine_nccl(gpu, found);
}

}  // namespace ddprun::launcher
