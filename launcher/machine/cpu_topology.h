// What this machine tells of its CPUs, their NUMA nodes and sockets, and of NVIDIA GPUs, from files
// of the kernel and its driver; no CUDA and no NVML, which would take seconds.
//
// Nothing here fails: what is missing or makes no sense is left out, and place_workers() copes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/machine/cpu_binding.h"

namespace ddprun::launcher {

// The CPUs that this process may run on, ascending; empty when the kernel does not say.
std::vector<int> allowed_cpus();

// Reads ROOT/sys and ROOT/proc; `root` is "" but in tests. `visible_devices` is the value of
// CUDA_VISIBLE_DEVICES: numbers, or the start of a GPU's UUID; the GPU of a MIG instance is known
// only when its old name (MIG-GPU-...) says it.
CpuTopology read_cpu_topology(const std::string& root, const std::vector<int>& allowed,
                              const std::optional<std::string>& visible_devices);

}  // namespace ddprun::launcher
