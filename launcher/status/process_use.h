// What the kernel knows of a worker without being told: its state, memory and processor time, with
// all that it has started.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "launcher/processes/process_stat.h"
#include "launcher/status/job_snapshot.h"

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

// Of all of them together, but for the state. Pure.
ProcessUse sum_of(const std::vector<StatLine>& lines);

// Of `pid` and the processes below it.
ProcessUse read_process_use(int pid);

// Processor time as a counter. What a process has used that ends while it is looked for, that
// nobody waits for, or that leaves the tree is missing in a sum; and to Prometheus a counter that
// goes back has begun anew, so that all of it would count again in a rate.
class ProcessorTimes {
 public:
  // The most that was said of `pid`: so it stands until the rest has made up for what is missing.
  double never_back(int pid, double cpu_s);
  // Others' pids may be given to new processes.
  void keep_only(const std::vector<int>& pids);

 private:
  std::map<int, double> most_;  // By pid.
};

// Bytes that they have written since their start, wherever to; 0: the kernel does not say.
std::int64_t read_bytes_written(int pid);

}  // namespace ddprun::launcher
