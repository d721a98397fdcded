// A launcher that does not answer may be any job's, so it is told of whatever was asked for: it may
// be the very one that somebody looks for.
#include "launcher/watch/found_looks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <optional>
#include <utility>

#include "launcher/watch/run_folder.h"

namespace ddprun::launcher {
namespace {

std::optional<std::string> watcher_variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

FoundLooks::FoundLooks(std::string job)
    : job_(std::move(job)), places_(run_folder_places(watcher_variable, ::geteuid())) {}

void FoundLooks::look(std::chrono::milliseconds limit) {
  for (Look& look : looks_) before_[look.now.launcher_pid] = std::move(look.now);
  looks_.clear();
  jobs_.clear();
  notes_.clear();
  for (FoundJob& found : find_jobs(places_, limit)) {
    if (!found.snapshot) {
      if (job_.empty() || job_ == std::to_string(found.pid)) {
        notes_.push_back(
            fmt::format("launcher {} does not answer: it is halted, or very busy", found.pid));
      }
      continue;
    }
    if (!job_.empty() && !is_called(*found.snapshot, job_)) continue;
    Look look{.now = *found.snapshot, .before = std::nullopt};
    if (const auto earlier = before_.find(look.now.launcher_pid); earlier != before_.end()) {
      look.before = earlier->second;
    }
    looks_.push_back(std::move(look));
    jobs_.push_back(std::move(found));
  }
}

long zone_seconds() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  return ::localtime_r(&now, &local) == nullptr ? 0 : local.tm_gmtoff;
}

}  // namespace ddprun::launcher
