// Reads now and compares with the attempt's start: a kill of an earlier attempt is not this one's.
#include "launcher/report/post_mortem.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "rendezvous/host/host_name.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t text_bytes_max = 1 << 20;

// A shell says 128 + 9 for a program that SIGKILL ended.
bool died_by_sigkill(const WorkerEnd& death) {
  return death.signal == SIGKILL || (death.signal == 0 && death.exit_code == 128 + SIGKILL);
}

// The newest regular file that matches and is not older than `since`; "" if there is none.
std::string newest_match(const std::string& pattern, std::time_t since) {
  glob_t found{};
  std::string newest;
  timespec newest_time{};
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) {
      struct stat status {};
      if (::stat(found.gl_pathv[i], &status) != 0 || !S_ISREG(status.st_mode)) continue;
      const timespec time = status.st_mtim;
      if (time.tv_sec < since) continue;
      if (newest.empty() || time.tv_sec > newest_time.tv_sec ||
          (time.tv_sec == newest_time.tv_sec && time.tv_nsec > newest_time.tv_nsec)) {
        newest = found.gl_pathv[i];
        newest_time = time;
      }
    }
  }
  ::globfree(&found);
  return newest;
}

}  // namespace

PostMortem::PostMortem(std::string root) : root_(std::move(root)) {}

std::string PostMortem::read(const std::string& path) const {
  std::ifstream file(root_ + path, std::ios::binary);
  std::string text;
  char piece[4096];
  while (file.read(piece, sizeof(piece)), file.gcount() > 0 && text.size() < text_bytes_max) {
    text.append(piece, static_cast<std::size_t>(file.gcount()));
  }
  return text;
}

void PostMortem::attempt_starts() {
  cgroup_ = find_memory_cgroup(read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
  kills_at_start_ = oom_kills();
  started_at_ = ::time(nullptr);
}

// Of the nearest cgroup that counts them: one further up also counts those of its other children.
std::optional<std::int64_t> PostMortem::oom_kills() const {
  const char* file = cgroup_.version_2 ? "/memory.events" : "/memory.oom_control";
  for (const std::string& folder : cgroup_.folders) {
    if (const auto kills = counter(read(folder + file), "oom_kill")) return kills;
  }
  return std::nullopt;
}

// The lowest limit on the way up, and the peak of the same cgroup.
void PostMortem::add_memory(KernelFacts& facts) const {
  const bool second = cgroup_.version_2;
  for (const std::string& folder : cgroup_.folders) {
    const auto limit =
        memory_amount(read(folder + (second ? "/memory.max" : "/memory.limit_in_bytes")));
    if (!limit || (facts.memory_limit_bytes != 0 && *limit >= facts.memory_limit_bytes)) continue;
    facts.memory_limit_bytes = *limit;
    facts.memory_peak_bytes =
        memory_amount(read(folder + (second ? "/memory.peak" : "/memory.max_usage_in_bytes")))
            .value_or(0);
  }
}

std::string PostMortem::core_of(const WorkerEnd& death) const {
  std::error_code ignored;
  const CoreSource source{.pid = death.pid,
                          .signal = death.signal,
                          .host = rendezvous::own_host_name(),
                          .folder = std::filesystem::current_path(ignored).string(),
                          .uid = ::getuid(),
                          .gid = ::getgid()};
  const CorePlace place =
      core_place(read("/proc/sys/kernel/core_pattern"),
                 read("/proc/sys/kernel/core_uses_pid").substr(0, 1) == "1", source);
  if (!place.handler.empty()) return core_advice(place.handler, death.pid);
  return place.glob.empty() ? "" : newest_match(place.glob, started_at_);
}

KernelFacts PostMortem::examine(const WorkerEnd& death) const {
  KernelFacts facts;
  if (!death.stopped_by_us && died_by_sigkill(death) && kills_at_start_) {
    const auto kills = oom_kills();
    facts.oom_killed = kills && *kills > *kills_at_start_;
  }
  if (facts.oom_killed) add_memory(facts);
  if (death.core_dumped) facts.core = core_of(death);
  return facts;
}

}  // namespace ddprun::launcher
