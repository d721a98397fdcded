// What files of the kernel and of its drivers say about a machine's network, memory and GPUs. What
// is missing or makes no sense is left out.
#pragma once

#include <string>

#include "launcher/doctor/machine_facts.h"

namespace ddprun::launcher {

// Sets cards and driver. `root` is "" but in tests.
void read_gpu_files(const std::string& root, GpuFacts& gpu);

// Sets the rest of them from libraries that are opened if they are there.
void ask_gpu_libraries(GpuFacts& gpu);

// The interface of the default route, or "".
std::string read_default_interface(const std::string& root);

// The free memory of the machine; no_limit when it does not say.
std::uint64_t read_available_memory(const std::string& root);

}  // namespace ddprun::launcher
