// Files of the kernel. A limit of a control group holds for all below it, so each on the way to the
// root counts. The launcher has its own reader of them, for other ends (launcher/machine/).
#include "worker/host_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "worker/communicator.h"
#include "worker/cpu/layout.h"

namespace ddprun::worker {
namespace {

constexpr double gib = 1 << 30;

std::string content_of(const std::string& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The number behind `name` at the beginning of a line.
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.starts_with(name)) continue;
    const std::size_t digits = std::min(line.find_first_not_of(' ', name.size()), line.size());
    std::uint64_t number = 0;
    const auto read = std::from_chars(line.data() + digits, line.data() + line.size(), number);
    if (read.ec == std::errc()) return number;
  }
  return std::nullopt;
}

// Of one group of version 2. Before it kills, the kernel takes back what files and names of files
// are kept in memory: all of it counts as left, or who reads much data would be refused for that.
std::uint64_t left_in_group(const std::string& folder) {
  const auto most = number_after(content_of(folder + "/memory.max"), "");
  if (!most) return unlimited_memory;  // "max" is no number.
  const auto used = number_after(content_of(folder + "/memory.current"), "").value_or(0);
  const std::string held = content_of(folder + "/memory.stat");
  std::uint64_t cache = 0;
  for (const char* name : {"inactive_file ", "active_file ", "slab_reclaimable "}) {
    cache += number_after(held, name).value_or(0);
  }
  return *most - std::min(*most, used - std::min(used, cache));
}

// Where a container is told the path of the host, which is not there, the mount is its group.
std::uint64_t left_in_groups(const std::string& root) {
  std::istringstream groups(content_of(root + "/proc/self/cgroup"));
  const std::string mount = root + "/sys/fs/cgroup";
  std::uint64_t left = unlimited_memory;
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;  // Version 1, whose memory controller few still have.
    for (std::string path = line.substr(3); path.size() > 1;
         path = path.substr(0, path.rfind('/'))) {
      left = std::min(left, left_in_group(mount + path));
    }
    left = std::min(left, left_in_group(mount));
  }
  return left;
}

std::string in_gib(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / gib);
  return text;
}

}  // namespace

std::uint64_t memory_left_in(std::string_view meminfo) {
  const auto available = number_after(meminfo, "MemAvailable:");
  if (!available) return unlimited_memory;
  return (*available + number_after(meminfo, "SwapFree:").value_or(0)) * 1024;
}

std::uint64_t memory_left(const std::string& root) {
  return std::min(memory_left_in(content_of(root + "/proc/meminfo")), left_in_groups(root));
}

std::string lack_of_memory(std::uint64_t wanted, std::uint64_t left) {
  if (wanted <= left) return "";
  return in_gib(wanted) + " of memory are asked for, and " + in_gib(left) + " are left";
}

std::shared_ptr<void> zeroed_memory(std::size_t bytes, const std::string& failed,
                                    std::string lack) {
  const std::size_t rounded = (bytes + line_bytes - 1) / line_bytes * line_bytes;
  if (lack.empty()) lack = lack_of_memory(rounded, memory_left());  // The kernel would promise it.
  void* memory = lack.empty() ? std::aligned_alloc(line_bytes, rounded) : nullptr;
  if (memory == nullptr) {
    throw OutOfMemory(failed + ": " + (lack.empty() ? "no memory is left" : lack));
  }
  std::memset(memory, 0, rounded);
  return {memory, std::free};
}

}  // namespace ddprun::worker
