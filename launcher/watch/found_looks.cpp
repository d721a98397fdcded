// A launcher that does not answer may be any job's, so it is told of while no other is the one that
// was asked for: it may be the very one that somebody looks for.
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

constexpr std::chrono::milliseconds all_nodes_limit{20'000};

std::optional<std::string> watcher_variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

FoundLooks::FoundLooks(const WatchCommand& command)
    : job_(command.job), places_(run_folder_places(watcher_variable, ::geteuid())) {
  if (!command.endpoint_host.empty()) remote_.emplace(command);
}

void FoundLooks::look(std::chrono::milliseconds limit) {
  for (Look& look : looks_) before_[look.now.launcher_pid] = std::move(look.now);
  looks_.clear();
  jobs_.clear();
  notes_.clear();
  if (remote_) return look_at_endpoint(limit);
  std::vector<int> silent;
  for (FoundJob& found : find_jobs(places_, limit)) {
    if (!found.snapshot) {
      silent.push_back(found.pid);
    } else if (job_.empty() || is_called(*found.snapshot, job_)) {
      add(std::move(found));
    }
  }
  for (const int pid : silent) {
    if (!may_be_meant(pid)) continue;
    notes_.push_back(fmt::format("launcher {} does not answer: it is halted, or very busy", pid));
  }
  if (!keeps_all_) drop_repeated();
}

bool FoundLooks::may_be_meant(int silent_pid) const {
  if (job_.empty() || job_ == std::to_string(silent_pid)) return true;
  // Once the job is known, a launcher that has never been its own keeps nobody waiting for it.
  return before_.contains(silent_pid) || (looks_.empty() && before_.empty());
}

// Once it has told something, its silence is news, and no mistake of who asks.
void FoundLooks::look_at_endpoint(std::chrono::milliseconds limit) {
  rendezvous::Query query;
  query.what = "snapshot";
  try {
    FoundJob found;
    found.snapshot = parse_snapshot(remote_->ask(query, limit), Writer::Peer);
    if (!found.snapshot) throw RemoteJobError(1, "ddprun: what answers there is no job");
    found.pid = found.snapshot->launcher_pid;
    told_ = true;
    add(std::move(found));
  } catch (const RemoteJobError& error) {
    if (!told_ || error.status() != 1) throw;
  }
}

void FoundLooks::add(FoundJob found) {
  Look look{.now = *found.snapshot, .before = std::nullopt};
  if (const auto earlier = before_.find(look.now.launcher_pid); earlier != before_.end()) {
    look.before = earlier->second;
  }
  looks_.push_back(std::move(look));
  jobs_.push_back(std::move(found));
}

void FoundLooks::drop_repeated() {
  for (std::size_t i = 0; i < looks_.size(); ++i) {
    for (std::size_t j = looks_.size() - 1; j > i; --j) {
      if (!shows(looks_[i].now, looks_[j].now)) continue;
      looks_.erase(looks_.begin() + static_cast<std::ptrdiff_t>(j));
      jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(j));
    }
  }
}

std::optional<std::string> FoundLooks::ask_all_nodes(const FoundJob& job, rendezvous::Query query) {
  if (remote_) return remote_->ask(query, all_nodes_limit);
  query.what = "all " + query.what;
  return ask_job(job, query, all_nodes_limit);
}

long zone_seconds() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  return ::localtime_r(&now, &local) == nullptr ? 0 : local.tm_gmtoff;
}

}  // namespace ddprun::launcher
