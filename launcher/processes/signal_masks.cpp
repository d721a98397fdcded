// The masks of /proc/PID/status, in hexadecimal, signal 1 at the lowest bit.
#include "launcher/processes/signal_masks.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "launcher/processes/process_file.h"

namespace ddprun::launcher {
namespace {

std::optional<bool> is_in_mask(const std::string& status, const char* name, int signal) {
  const std::string key = std::string("\n") + name + ":";
  const std::size_t at = status.find(key);
  if (at == status.npos) return std::nullopt;
  return (std::strtoull(status.c_str() + at + key.size(), nullptr, 16) >> (signal - 1) & 1) != 0;
}

std::string status_of(int pid) {
  return read_process_file("/proc/" + std::to_string(pid) + "/status");
}

}  // namespace

bool handles_signal(int pid, int signal) {
  return is_in_mask(status_of(pid), "SigCgt", signal).value_or(false);
}

bool has_answer_to_signal(int pid, int signal) {
  const std::string status = status_of(pid);
  for (const char* mask : {"SigCgt", "SigIgn", "SigBlk"}) {
    if (is_in_mask(status, mask, signal).value_or(true)) return true;
  }
  return false;
}

}  // namespace ddprun::launcher
