// Every process that belongs to the workers: they themselves, what they started, and what they left
// behind when they ended. Linux hands the last kind to us, the nearest child subreaper.
//
// Where the launcher is a container's first process it is handed orphans of others as well, such as
// what `kubectl exec` has left: those are reaped when they end, and otherwise left alone. A
// worker's process that has cleared its environment, left its session and was adopted before
// anybody looked cannot be told from these, and is left alone, too.
#pragma once

#include <set>
#include <vector>

#include "launcher/processes/child_guard.h"
#include "launcher/processes/child_sessions.h"

namespace ddprun::launcher {

class WorkerMembers {
 public:
  // Whose sessions and variable the workers have; before anything else. It must outlive this.
  void know(const ChildGuard& guard) { guard_ = &guard; }
  void attempt_starts();  // Those of the one before are gone.

  // Children of ours that no spawn() made and that are not of our session: handed to us by the
  // kernel. A program that embeds the launcher may have children of its own, in its own session.
  static std::vector<int> adopted_children();
  // Those of these adopted children that workers have left behind. `kept`: sessions of workers that
  // stay, with what they have left behind.
  std::vector<int> left_behind(const std::vector<int>& adopted,
                               const std::set<int>& kept = {}) const;
  // One that is in nobody's way, ends soon after the last worker that it serves, and must not be
  // ended before: PyTorch's keeper of shared memory (the sharing strategy file_system), which
  // handles no signal and takes away what is left in /dev/shm, two seconds after its last client.
  static bool outlives_workers(const ProcessRow& row);
  // Halts all who run, with SIGSTOP, and lets those go on again; who was halted before stays so.
  // `leaders` as in of(), with spares and kept ones.
  void halt(const std::vector<int>& leaders);
  void let_go();
  void forget(int pid) { seen_.erase(pid); }  // It is reaped.

  // `leaders`: the workers that are not reaped yet, without those that stay.
  std::vector<ProcessRow> of(std::vector<int> leaders, const std::set<int>& kept = {});

  // Sends `signal` to every member that was not asked yet, but for who outlives workers: a second
  // SIGTERM makes some programs give up their clean-up. `session`: only to members of that one; 0 =
  // all.
  void ask(const std::vector<int>& leaders, int signal, const std::set<int>& kept, int session = 0);
  void ask_anew() { asked_.clear(); }

  // All but guards (kill_tree.h), which are waited for like all others ...
  void kill(const std::vector<int>& leaders, const std::set<int>& kept = {});
  // ... and these, where that was in vain.
  void kill_guards(const std::vector<int>& leaders, const std::set<int>& kept = {});
  // Only those that were asked, but for guards.
  void kill_asked(const std::vector<int>& leaders, const std::set<int>& kept);

 private:
  const ChildGuard* guard_ = nullptr;
  std::set<int> asked_;
  std::set<int> halted_;
  std::set<int> seen_;  // Below a worker, at any look.
};

}  // namespace ddprun::launcher
