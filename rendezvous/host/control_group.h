// The limits of this process's control group (cgroup), of version 1 or 2: of a container, a pod, or
// a scheduler's job.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace ddprun::rendezvous {

struct ControlGroup {
  static constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t memory_max = unlimited;   // Bytes, and of them
  std::uint64_t memory_used = 0;          // without files that are read again.
  std::uint64_t memory_left = unlimited;  // Where it is the least; all that can be taken back is.
  double cpus = 0;                        // Its quota of CPU time, in whole CPUs; 0: none.
  std::uint64_t pids_max = unlimited;     // Processes and threads.
};

// `root` is "" but in tests. What cannot be read limits nothing. Some hundred microseconds.
ControlGroup read_control_group(const std::string& root);

// Of `usable` CPUs those that a process can keep busy at the same time: whole ones, at least 1.
int cpus_at_once(const ControlGroup& group, int usable);

}  // namespace ddprun::rendezvous
