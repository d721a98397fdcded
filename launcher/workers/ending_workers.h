// The workers that have ended, in an attempt that is over, and whose memory the kernel still frees.
// Nothing of theirs is in the way of the next attempt but the pid, which is reaped here.
//
// Passive, as WorkerGroup, which owns it, watches their pidfds.
#pragma once

#include <memory>
#include <vector>

#include "launcher/processes/child_guard.h"
#include "launcher/workers/worker_process.h"

namespace ddprun::launcher {

class EndingWorkers {
 public:
  using Process = std::shared_ptr<WorkerProcess>;

  explicit EndingWorkers(OutputForwarder& output) : output_(output) {}

  void add(Process process);
  bool has(const Process& process) const;
  // Of those that are gone by now nothing is left here; what they wrote last is passed on.
  void reap(ChildGuard& guard);

  bool empty() const { return processes_.empty(); }
  std::vector<int> pids() const;
  std::vector<Process> release() { return std::exchange(processes_, {}); }

 private:
  OutputForwarder& output_;
  std::vector<Process> processes_;
};

}  // namespace ddprun::launcher
