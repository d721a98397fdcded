// /proc and not getrusage: that one's maximum survives exec, so it may be another program's.
#include "trainer/report/memory_use.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <string>

namespace ddprun::trainer {
namespace {

// "VmRSS:\t   12345 kB", as proc(5) has it.
std::int64_t bytes_of_line(std::string_view text, std::string_view name) {
  std::size_t at = text.find(name);
  if (at == std::string_view::npos) return 0;
  at = text.find_first_of("0123456789", at + name.size());
  if (at == std::string_view::npos) return 0;
  std::int64_t kilobytes = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), kilobytes);
  return kilobytes * 1024;
}

}  // namespace

MemoryUse parse_memory_use(std::string_view proc_status) {
  return {.resident_bytes = bytes_of_line(proc_status, "VmRSS:"),
          .resident_peak_bytes = bytes_of_line(proc_status, "VmHWM:")};
}

MemoryUse memory_use() {
  std::ifstream file("/proc/self/status");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return parse_memory_use(text);
}

}  // namespace ddprun::trainer
