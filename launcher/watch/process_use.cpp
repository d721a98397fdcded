// Time that ended children have used is counted when their parent has waited for them: the sum over
// a tree then never goes back while its root lives.
#include "launcher/watch/process_use.h"

#include <unistd.h>

#include <fstream>
#include <string>

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

ProcessUse read_process_use(int pid) {
  ProcessUse use;
  for (const ProcessRow& row : read_with_descendants({pid})) {
    const auto stat = read_process_stat(row.pid);
    const auto line = stat ? stat_line(*stat) : std::nullopt;
    if (!line) continue;
    ++use.processes;
    use.threads += line->threads;
    use.rss_bytes += line->rss_pages * ::sysconf(_SC_PAGESIZE);
    use.cpu_s += static_cast<double>(line->ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
    if (row.pid == pid) use.state = line->state;
  }
  return use;
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
