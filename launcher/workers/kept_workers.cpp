// Nothing here may hold up the next attempt: every doubt about a kept process ends it, and its
// place is filled as any other.
#include "launcher/workers/kept_workers.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "launcher/workers/start_error.h"

namespace ddprun::launcher {

KeptWorkers::Process KeptWorkers::take(const WorkerSpec& worker, const DeathMarks& marks,
                                       ChildGuard& guard, const std::set<int>& others) {
  const auto found = std::find_if(processes_.begin(), processes_.end(), [&](const auto& process) {
    return process->spec.place == worker.place;
  });
  if (found == processes_.end()) return nullptr;
  const Process process = *found;
  processes_.erase(found);
  try {
    if (process->channel && process->give_rank(output_, worker, marks)) return process;
  } catch (const std::system_error& error) {
    end({process}, guard, others);
    throw start_error(worker.local_rank, error);
  }
  if (process->channel) {
    spdlog::warn(
        "the kept process of local rank {} (pid {}) does not take its rank ({}); another one takes "
        "its place",
        worker.local_rank, process->child.pid(), std::strerror(errno));
  }
  end({process}, guard, others);
  return nullptr;
}

std::vector<KeptWorkers::Process> KeptWorkers::take_ended(ChildGuard& guard,
                                                          const std::set<int>& others) {
  std::vector<Process> ended;
  for (const Process& process : std::vector(processes_)) {
    if (process->hear() && process->may_go_on()) continue;
    processes_.erase(std::find(processes_.begin(), processes_.end(), process));
    ended.push_back(process);
  }
  end(ended, guard, others);
  std::erase_if(ended, [](const Process& process) { return !process->status; });
  return ended;
}

bool KeptWorkers::take_ended(const Process& process, ChildGuard& guard,
                             const std::set<int>& others) {
  const auto found = std::find(processes_.begin(), processes_.end(), process);
  if (found == processes_.end()) return false;
  process->child.send_to_group(SIGKILL);
  if (!process->take_status()) return false;
  processes_.erase(found);
  members_.kill({}, sessions_with(others));
  guard.remove_session(process->child.pid());
  return true;
}

void KeptWorkers::end_all(ChildGuard& guard, const std::set<int>& others) {
  end(release(), guard, others);
}

// A moment, since most go at once, and what they held is free for who takes their place then. No
// longer: one with much memory may take many seconds, in which this node would be silent to others,
// and be lost.
void KeptWorkers::end(const std::vector<Process>& processes, ChildGuard& guard,
                      const std::set<int>& others) {
  const std::set<int> stay = sessions_with(others);
  for (const Process& process : processes) {
    members_.kill({process->child.pid()}, stay);
    process->child.send_to_group(SIGKILL);
  }
  const auto all_gone = [&] {
    return std::count_if(processes.begin(), processes.end(),
                         [](const Process& process) { return !process->take_status(); }) == 0;
  };
  const auto limit = std::chrono::steady_clock::now() + kill_wait_;
  while (!all_gone() && std::chrono::steady_clock::now() < limit) ::usleep(500);
  for (const Process& process : processes) {
    if (process->child.reaped()) {
      process->close();
      guard.remove_session(process->child.pid());
    } else {
      process->foresee_status();
      ending_.add(process);
    }
  }
}

bool KeptWorkers::has(int place) const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [&](const auto& process) { return process->spec.place == place; });
}

std::set<int> KeptWorkers::sessions() const {
  std::set<int> sessions;
  for (const Process& process : processes_) {
    if (!process->status) sessions.insert(process->child.pid());
  }
  return sessions;
}

std::set<int> KeptWorkers::sessions_with(std::set<int> others) const {
  others.merge(sessions());
  return others;
}

}  // namespace ddprun::launcher
