// Time that ended children have used is counted when their parent has waited for them: the sum over
// a tree then seldom goes back while its root lives.
#include "launcher/status/process_use.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "launcher/processes/child_sessions.h"

namespace ddprun::launcher {

std::optional<StatLine> stat_line(const ProcessStat& stat) {
  constexpr int own_user = 14, last_time = 17, threads = 20, rss = 24;
  const auto pages = stat.number(rss);
  if (!pages) return std::nullopt;
  StatLine line{.state = stat.state(), .rss_pages = *pages};
  line.threads = static_cast<int>(stat.number(threads).value_or(0));
  for (int field = own_user; field <= last_time; ++field) {
    line.ticks += stat.number(field).value_or(0);
  }
  return line;
}

// Ticks are added up as such: seconds would be rounded once for each process, and the sum could be
// less by the last bit when one of them has ended.
ProcessUse sum_of(const std::vector<StatLine>& lines) {
  ProcessUse use;
  long long ticks = 0;
  for (const StatLine& line : lines) {
    ++use.processes;
    use.threads += line.threads;
    use.rss_bytes += line.rss_pages * ::sysconf(_SC_PAGESIZE);
    ticks += line.ticks;
  }
  use.cpu_s = static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return use;
}

ProcessUse read_process_use(int pid) {
  std::vector<StatLine> lines;
  char state = ProcessUse{}.state;
  for (const ProcessRow& row : read_with_descendants({pid})) {
    const auto stat = read_process_stat(row.pid);
    const auto line = stat ? stat_line(*stat) : std::nullopt;
    if (!line) continue;
    lines.push_back(*line);
    if (row.pid == pid) state = line->state;
  }
  ProcessUse use = sum_of(lines);
  use.state = state;
  return use;
}

double ProcessorTimes::never_back(int pid, double cpu_s) {
  double& most = most_[pid];
  return most = std::max(most, cpu_s);
}

void ProcessorTimes::keep_only(const std::vector<int>& pids) {
  std::map<int, double> kept;
  for (const int pid : pids) {
    if (const auto known = most_.find(pid); known != most_.end()) kept.insert(*known);
  }
  most_ = std::move(kept);
}

std::int64_t read_bytes_written(int pid) {
  std::int64_t bytes = 0;
  for (const ProcessRow& row : read_with_descendants({pid})) {
    std::ifstream file("/proc/" + std::to_string(row.pid) + "/io");
    for (std::string word; file >> word;) {
      std::int64_t value = 0;
      if (word == "wchar:" && file >> value) bytes += value;
    }
  }
  return bytes;
}

}  // namespace ddprun::launcher
