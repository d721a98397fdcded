// The processes that have outlived their attempt: parked, without a rank, with all that they hold
// in memory. Each waits for the place that it had, in which it is the best spare there is: it has
// state.
//
// Passive, as WorkerGroup, which owns it, watches their pidfds and channels, and gives it those
// that are left when an attempt has ended.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launcher/processes/child_guard.h"
#include "launcher/processes/worker_members.h"
#include "launcher/workers/ending_workers.h"
#include "launcher/workers/worker_process.h"

namespace ddprun::launcher {

class KeptWorkers {
 public:
  using Process = std::shared_ptr<WorkerProcess>;

  // `ending`: gets those that are killed here and take longer to go. `kill_wait`: how long they are
  // waited for first, all that are ended together; the event loop stands still meanwhile.
  KeptWorkers(OutputForwarder& output, WorkerMembers& members, EndingWorkers& ending,
              std::chrono::milliseconds kill_wait)
      : output_(output), members_(members), ending_(ending), kill_wait_(kill_wait) {}

  void keep(Process process) { processes_.push_back(std::move(process)); }

  // The process for this worker, which has got its rank; it is watched already. Nothing: there is
  // none of its place, or it was of no use and has been ended. Throws StartError. `others`, here
  // and below: sessions of spares, and of workers that begin, whose leavings stay.
  Process take(const WorkerSpec& worker, const DeathMarks& marks, ChildGuard& guard,
               const std::set<int>& others);

  // Takes out those that have ended or hung up, or are about to, with their exit status if it is
  // known, and ends what they have left.
  std::vector<Process> take_ended(ChildGuard& guard, const std::set<int>& others);
  // Of this one it is known that it has ended. False: it is not here, or cannot be reaped (a
  // debugger holds it).
  bool take_ended(const Process& process, ChildGuard& guard, const std::set<int>& others);

  // They have no place any more.
  void end_all(ChildGuard& guard, const std::set<int>& others);

  bool has(int place) const;
  std::vector<Process> release() { return std::exchange(processes_, {}); }
  const std::vector<Process>& processes() const { return processes_; }
  bool empty() const { return processes_.empty(); }
  int count() const { return static_cast<int>(processes_.size()); }
  // What they have left behind stays with them.
  std::set<int> sessions() const;

 private:
  void end(const std::vector<Process>& processes, ChildGuard& guard, const std::set<int>& others);
  std::set<int> sessions_with(std::set<int> others) const;

  OutputForwarder& output_;
  WorkerMembers& members_;
  EndingWorkers& ending_;
  std::chrono::milliseconds kill_wait_;
  std::vector<Process> processes_;
};

}  // namespace ddprun::launcher
