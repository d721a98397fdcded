// Texts of the kernel about memory limits and core dumps, taken apart.
//
// A core: text in, values out. Sources: cgroups(7), proc(5), core(5), and the kernel's
// Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// Where the memory controller keeps this process's counters.
struct MemoryCgroup {
  bool version_2 = false;
  // Its own folder first, then those above it as far as they are visible here; empty: none is.
  std::vector<std::string> folders;
};

// From /proc/self/cgroup and /proc/self/mountinfo. Version 1 where the memory controller is there
// (also beside version 2), else version 2.
MemoryCgroup find_memory_cgroup(std::string_view cgroup, std::string_view mountinfo);

// The number behind `name` in lines of "name number" (memory.events, memory.oom_control).
std::optional<std::int64_t> counter(std::string_view text, std::string_view name);

// A file with one number. "max", and what version 1 writes for no limit, are nothing.
std::optional<std::int64_t> memory_amount(std::string_view text);

// A process that dumped core, as far as its parent knows it.
struct CoreSource {
  int pid = 0;
  int signal = 0;
  std::string host;
  std::string folder;  // Its working directory.
  unsigned uid = 0;
  unsigned gid = 0;
};

// /proc/sys/kernel/core_pattern made into what to look for.
struct CorePlace {
  std::string glob;     // For glob(3): what only the process itself knew is a '*'. "" = no file.
  std::string handler;  // The program that was given the dump through a pipe; "" = none.
};
CorePlace core_place(std::string_view pattern, bool append_pid, const CoreSource& source);

// How to get a dump out of a handler.
std::string core_advice(const std::string& handler, int pid);

}  // namespace ddprun::launcher
