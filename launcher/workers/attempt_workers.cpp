// Each question is asked anew of the processes: what was true of one at the last look may have
// ended with it.
#include "launcher/workers/attempt_workers.h"

#include <fmt/format.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "rendezvous/control/first_cause.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {

void AttemptWorkers::add(Process process) {
  process->index = count();
  processes_.push_back(std::move(process));
}

AttemptWorkers::Process AttemptWorkers::of_pid(int pid) const {
  const auto found = std::find_if(processes_.begin(), processes_.end(),
                                  [&](const auto& worker) { return worker->child.pid() == pid; });
  return found == processes_.end() ? nullptr : *found;
}

AttemptWorkers::Process AttemptWorkers::of_local_rank(int local_rank) const {
  const auto found = std::find_if(processes_.begin(), processes_.end(), [&](const auto& worker) {
    return worker->spec.local_rank == local_rank;
  });
  return found == processes_.end() ? nullptr : *found;
}

std::vector<int> AttemptWorkers::missing_places(int places) const {
  std::vector<int> missing;
  for (int place = 0; place < places; ++place) {
    const bool filled = std::any_of(processes_.begin(), processes_.end(), [&](const auto& worker) {
      return worker->spec.place == place;
    });
    if (!filled) missing.push_back(place);
  }
  return missing;
}

GroupMember AttemptWorkers::as_member(const WorkerProcess& worker) {
  const auto& status = worker.status;
  return {.told = worker.gone,
          .known = status.has_value(),
          .failed = status && (status->signal != 0 || status->exit_code != 0),
          .signal = status ? status->signal : 0,
          .ending = worker.is_ending(),
          .only_memory = worker.only_memory,
          .stop_sent = worker.stop_sent,
          .asked = worker.parking.asked(),
          .can_park = worker.parking.can_park(),
          .parked = worker.parking.parked(),
          .ended_at = worker.ended_at};
}

std::vector<GroupMember> AttemptWorkers::as_members() const {
  std::vector<GroupMember> result;
  for (const auto& worker : processes_) {
    result.push_back(as_member(*worker));
    result.back().parked = worker->parking.parked() && stays(*worker);
  }
  return result;
}

bool AttemptWorkers::stays(const WorkerProcess& worker) const {
  return state_.spares(as_member(worker)) && !worker.child.has_ended();
}

int AttemptWorkers::staying() const {
  return static_cast<int>(std::count_if(processes_.begin(), processes_.end(),
                                        [&](const auto& worker) { return stays(*worker); }));
}

int AttemptWorkers::parking() const {
  return static_cast<int>(std::count_if(
      processes_.begin(), processes_.end(),
      [&](const auto& worker) { return stays(*worker) && !worker->parking.parked(); }));
}

int AttemptWorkers::running() const {
  return static_cast<int>(std::count_if(processes_.begin(), processes_.end(),
                                        [](const auto& worker) { return !worker->gone; }));
}

std::vector<int> AttemptWorkers::leaders() const {
  std::vector<int> pids;
  for (const auto& worker : processes_) {
    if (!worker->child.reaped() && !stays(*worker)) pids.push_back(worker->child.pid());
  }
  return pids;
}

std::set<int> AttemptWorkers::kept_sessions() const {
  std::set<int> sessions;
  for (const auto& worker : processes_) {
    const bool begins = !state_.active() && !worker->gone && !worker->status;
    if (begins || stays(*worker)) sessions.insert(worker->child.pid());
  }
  return sessions;
}

void AttemptWorkers::mark_stopped() const {
  for (const auto& worker : processes_) {
    // One that has ended by itself is no victim of this stop, though nobody has seen its end yet.
    if (!worker->gone && !worker->child.has_ended()) worker->stop_sent = true;
  }
}

void AttemptWorkers::mark_asked() const {
  for (const auto& worker : processes_) {
    if (worker->gone || stays(*worker)) continue;
    const bool out_of_time = state_.keeping() && !worker->child.has_ended();
    if (!worker->parking.ask_to_end(out_of_time)) continue;
    spdlog::warn("rank {} (pid {}) said that it can park, and has not within {}: it gets {}",
                 worker->spec.rank, worker->child.pid(), rendezvous::time_text(state_.grace()),
                 rendezvous::signal_name(state_.signal()));
  }
}

void AttemptWorkers::tell_over(const std::string& why) const {
  for (const auto& worker : processes_) {
    if (worker->channel && stays(*worker) && worker->parking.take_word()) worker->send_over(why);
  }
}

void AttemptWorkers::warn_of_kill() const {
  std::vector<int> ranks;
  for (const auto& worker : processes_) {
    if (as_member(*worker).asked && !worker->gone && !worker->child.has_ended()) {
      ranks.push_back(worker->spec.rank);
    }
  }
  if (ranks.empty() || state_.grace().count() == 0) return;
  spdlog::warn("{} {} did not end within {} of {}: SIGKILL (--shutdown-timeout gives more time)",
               ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
               rendezvous::time_text(state_.grace()), rendezvous::signal_name(state_.signal()));
}

void AttemptWorkers::kill_all_but_staying() const {
  for (const auto& worker : processes_) {
    if (!stays(*worker)) worker->child.send_to_group(SIGKILL);
  }
}

}  // namespace ddprun::launcher
