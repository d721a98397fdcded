// What files of the kernel and of its drivers say about a machine's limits and GPUs. What is
// missing or makes no sense is left out.
#pragma once

#include <string>

#include "launcher/doctor/machine_facts.h"

namespace ddprun::launcher {

// `root` is "" but in tests. Sets the cgroup_* members, of version 1 and 2 of control groups.
void read_control_group(const std::string& root, MachineFacts& facts);

// Sets cards and driver.
void read_gpu_files(const std::string& root, GpuFacts& gpu);

// Sets the rest of them from libraries that are opened if they are there.
void ask_gpu_libraries(GpuFacts& gpu);

// The interface of the default route, or "".
std::string read_default_interface(const std::string& root);

// The free memory of the machine; no_limit when it does not say.
std::uint64_t read_available_memory(const std::string& root);

std::string first_line_of(const std::string& path);

}  // namespace ddprun::launcher
