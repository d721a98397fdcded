// The workers of the attempt at hand: who of them stays when it ends, whose processes are to end
// with it, and what each was told. The group (worker_group.h) decides when; its state, who is
// spared.
//
// Passive: knows their processes, and no timers.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/workers/group_state.h"
#include "launcher/workers/worker_process.h"

namespace ddprun::launcher {

class AttemptWorkers {
 public:
  using Process = std::shared_ptr<WorkerProcess>;

  explicit AttemptWorkers(const GroupState& state) : state_(state) {}  // Which outlives it.

  void add(Process process);  // The next one, by its index.
  void clear() { processes_.clear(); }
  void replace(std::vector<Process> processes) { processes_ = std::move(processes); }
  std::vector<Process> release() { return std::exchange(processes_, {}); }

  const std::vector<Process>& processes() const { return processes_; }
  const Process& at(int index) const { return processes_[static_cast<std::size_t>(index)]; }
  bool empty() const { return processes_.empty(); }
  int count() const { return static_cast<int>(processes_.size()); }
  Process of_pid(int pid) const;                // Or null.
  Process of_local_rank(int local_rank) const;  // Or null.
  // Of the first `places`, those that nobody has.
  std::vector<int> missing_places(int places) const;

  // Not to be ended now: it can park, or is parked, and the stop spares those.
  bool stays(const WorkerProcess& worker) const;
  int staying() const;
  int parking() const;  // Those that stay, and have not parked.
  int running() const;  // Whose end was not told.
  // By index, as the state wants to see them. One that is parked before the attempt is over has not
  // left the group.
  std::vector<GroupMember> as_members() const;

  // Not reaped, and not to stay.
  std::vector<int> leaders() const;
  // Of those that stay: what they have left behind stays with them. While an attempt is being
  // started also those that have their rank.
  std::set<int> kept_sessions() const;

  // The attempt is over for those that live: their end is no doing of theirs from now on.
  void mark_stopped() const;
  // They are about to get the signal to end.
  void mark_asked() const;
  // To those that stay, once each. Who hears nothing of it is asked when the time is over.
  void tell_over(const std::string& why) const;
  // Those that were asked to end, and live, are about to be killed: nothing else tells of it.
  void warn_of_kill() const;
  void kill_all_but_staying() const;  // Their process groups.

 private:
  static GroupMember as_member(const WorkerProcess& worker);

  const GroupState& state_;
  std::vector<Process> processes_;
};

}  // namespace ddprun::launcher
