// A field is looked for when it is asked for: a look at all processes of a machine needs the first
// few of some fifty.
#include "launcher/processes/process_stat.h"

#include <charconv>
#include <utility>

#include "launcher/processes/process_file.h"

namespace ddprun::launcher {

std::optional<ProcessStat> ProcessStat::parse(const std::string& text) {
  const std::size_t open = text.find('(');
  const std::size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  const std::size_t state = text.find_first_not_of(" \n", close + 1);
  if (state == std::string::npos) return std::nullopt;
  return ProcessStat(text.substr(open + 1, close - open - 1), text.substr(state));
}

std::optional<long long> ProcessStat::number(int field) const {
  constexpr int first = 3;
  std::string_view rest = rest_;
  for (int i = first; i < field; ++i) {
    const std::size_t space = rest.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(space + 1);
  }
  long long number = 0;
  const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (parsed.ec != std::errc()) return std::nullopt;
  return number;
}

std::optional<ProcessStat> read_process_stat(int pid) {
  return ProcessStat::parse(read_process_file("/proc/" + std::to_string(pid) + "/stat"));
}

}  // namespace ddprun::launcher
