// A launcher that does not answer may be any job's, so it is told of while no other is the one that
// was asked for: it may be the very one that somebody looks for.
#include "launcher/watch/found_looks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "launcher/machine/this_machine.h"
#include "launcher/status/run_folder.h"

namespace ddprun::launcher {
namespace {

constexpr std::chrono::milliseconds all_nodes_limit{20'000};

std::vector<RemoteJob::Place> others_of(const JobSnapshot& job) {
  std::vector<RemoteJob::Place> places;
  for (const NodeView& node : job.others) {
    if (node.port <= 0 || node.port > 65'535 || node.address.empty()) continue;
    places.push_back({node.address, static_cast<std::uint16_t>(node.port)});
  }
  return places;
}

std::string socket_of(const FoundJob& job) {
  return job.name.empty() ? "" : job.folder + "/" + job.name;
}

}  // namespace

FoundLooks::FoundLooks(const WatchCommand& command)
    : job_(command.job), places_(run_folder_places(environment_variable, ::geteuid())) {
  if (!command.endpoint_host.empty()) remote_.emplace(command);
}

FoundLooks::Launcher FoundLooks::launcher_of(const JobSnapshot& job) {
  return {job.host, job.launcher_id, job.launcher_pid, job.started_unix_s};
}

void FoundLooks::remember() {
  for (std::size_t i = 0; i < looks_.size(); ++i) {
    const Launcher launcher = launcher_of(looks_[i].now);
    before_[launcher] = {std::move(looks_[i].now), socket_of(jobs_[i])};
  }
  looks_.clear();
  jobs_.clear();
  notes_.clear();
}

void FoundLooks::look(std::chrono::milliseconds limit, Time now) {
  remember();
  if (remote_) return look_at_endpoint(limit, now);
  std::vector<FoundJob> silent;
  for (FoundJob& found : find_jobs(places_, limit)) {
    if (!found.snapshot) {
      silent.push_back(std::move(found));
    } else if (job_.empty() || is_called(*found.snapshot, job_)) {
      add(std::move(found));
    }
  }
  for (const FoundJob& found : silent) {
    if (!may_be_meant(found)) continue;
    notes_.push_back(
        fmt::format("launcher {} does not answer: it is halted, or very busy", found.pid));
  }
  if (!keeps_all_) drop_repeated();
}

bool FoundLooks::may_be_meant(const FoundJob& silent) const {
  if (job_.empty() || job_ == std::to_string(silent.pid)) return true;
  // Once the job is known, a launcher that has never been its own keeps nobody waiting for it. One
  // that is silent does not say when it started, but no other one has its socket.
  const std::string socket = socket_of(silent);
  const bool was_its_own = std::any_of(before_.begin(), before_.end(), [&](const auto& known) {
    return known.second.socket == socket;
  });
  return was_its_own || (looks_.empty() && before_.empty());
}

// Once it has told something, its silence is news, and no mistake of who asks.
void FoundLooks::look_at_endpoint(std::chrono::milliseconds limit, Time now) {
  rendezvous::Query query;
  query.what = "snapshot";
  try {
    FoundJob found;
    found.snapshot = parse_snapshot(remote_->ask(query, limit), Writer::Peer);
    if (!found.snapshot) throw RemoteJobError(1, "ddprun: what answers there is no job");
    found.pid = found.snapshot->launcher_pid;
    told_ = true;
    silence_.heard();
    remote_->set_others(others_of(*found.snapshot));
    add(std::move(found));
  } catch (const RemoteJobError& error) {
    if (!told_ || error.status() != 1) throw;
    silence_.missed(error.nobody_listens(), now);
    if (silence_.is_over(now)) return;
    notes_.push_back(
        error.nobody_listens()
            ? fmt::format("nobody listens at {}: the job has ended, or is cut off", remote_->name())
            : fmt::format("{} does not answer: its launcher is halted or very busy, it is cut off, "
                          "or another node takes over",
                          remote_->name()));
  }
}

void FoundLooks::add(FoundJob found) {
  Look look{.now = *found.snapshot, .before = std::nullopt};
  if (const auto earlier = before_.find(launcher_of(look.now)); earlier != before_.end()) {
    look.before = earlier->second.snapshot;
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
