// What the kernel knows of a worker without being told: its state, memory and processor time, with
// all that it has started.
#pragma once

#include <cstdint>
#include <optional>

#include "launcher/processes/process_stat.h"
#include "launcher/watch/job_snapshot.h"

namespace ddprun::launcher {

// What one line of /proc/PID/stat says, in the kernel's own units.
struct StatLine {
  char state = '?';
  long long ticks = 0;  // Of its own, and of its children that have been waited for.
  int threads = 0;
  long long rss_pages = 0;
};
// Pure; nothing when the line ends early.
std::optional<StatLine> stat_line(const ProcessStat& stat);

// Of `pid` and the processes below it.
ProcessUse read_process_use(int pid);

// Bytes that they have written since their start, wherever to; 0: the kernel does not say.
std::int64_t read_bytes_written(int pid);

}  // namespace ddprun::launcher
