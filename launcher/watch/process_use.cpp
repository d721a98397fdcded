// Time that ended children have used is counted when their parent has waited for them: the sum over
// a tree then never goes back while its root lives.
#include "launcher/watch/process_use.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "launcher/processes/child_sessions.h"
#include "launcher/processes/process_file.h"

namespace ddprun::launcher {

std::optional<StatLine> parse_stat(const std::string& text) {
  // "PID (name) state ..."; the name may hold spaces and parentheses.
  const std::size_t close = text.rfind(')');
  if (close == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(close + 1));
  StatLine line;
  rest >> line.state;
  constexpr int first_behind_state = 4, own_user = 14, last_time = 17, threads = 20, rss = 24;
  for (int field = first_behind_state; field <= rss; ++field) {
    std::string word;
    if (!(rest >> word)) return std::nullopt;
    const long long value = std::strtoll(word.c_str(), nullptr, 10);
    if (field >= own_user && field <= last_time) line.ticks += value;
    if (field == threads) line.threads = static_cast<int>(value);
    if (field == rss) line.rss_pages = value;
  }
  return line;
}

ProcessUse read_process_use(int pid) {
  ProcessUse use;
  for (const ProcessRow& row : read_with_descendants({pid})) {
    const auto line = parse_stat(read_process_file("/proc/" + std::to_string(row.pid) + "/stat"));
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
