#include "worker/host_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rendezvous/host/control_group.h"
#include "rendezvous/host/kernel_files.h"
#include "worker/communicator.h"
#include "worker/cpu/layout.h"

namespace ddprun::worker {
namespace {

constexpr double gib = 1 << 30;

std::string in_gib(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / gib);
  return text;
}

}  // namespace

std::uint64_t memory_left(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  const std::uint64_t in_groups = rendezvous::read_control_group(root).memory_left;
  const auto available_kib = rendezvous::named_number(meminfo, "MemAvailable:");
  if (!available_kib) return in_groups;
  const std::uint64_t swap_kib = rendezvous::named_number(meminfo, "SwapFree:").value_or(0);
  return std::min((*available_kib + swap_kib) * 1024, in_groups);
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
