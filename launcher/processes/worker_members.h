// Every process that belongs to the workers: they themselves, what they started, and what they left
// behind when they ended. Linux hands the last kind to us, the nearest child subreaper.
#pragma once

#include <set>
#include <vector>

#include "launcher/processes/child_sessions.h"

namespace ddprun::launcher {

class WorkerMembers {
 public:
  // Children of ours that no spawn() made and that are not of our session: what workers have left
  // behind. A program that embeds the launcher may have children of its own, in its own session. As
  // PID 1 only those with the variable of child_guard.h: one that has emptied its environment
  // stays. `kept`: sessions of workers that stay, with what they have left behind.
  static std::vector<int> adopted_children(const std::set<int>& kept = {});

  // `leaders`: the workers that are not reaped yet, without those that stay.
  static std::vector<ProcessRow> of(std::vector<int> leaders, const std::set<int>& kept = {});

  // Sends `signal` to every member that was not asked yet: a second SIGTERM makes some programs
  // give up their clean-up. `session`: only to members of that one; 0 = all.
  void ask(const std::vector<int>& leaders, int signal, const std::set<int>& kept, int session = 0);
  void forget_asked() { asked_.clear(); }

  static void kill(const std::vector<int>& leaders, const std::set<int>& kept = {});
  // Only those that were asked.
  void kill_asked(const std::vector<int>& leaders, const std::set<int>& kept) const;

 private:
  std::set<int> asked_;
};

}  // namespace ddprun::launcher
