// Every process that belongs to the workers: they themselves, what they started, and what they left
// behind when they ended. Linux hands the last kind to us, the nearest child subreaper.
#pragma once

#include <set>
#include <vector>

#include "launcher/workers/child_sessions.h"

namespace ddprun::launcher {

class WorkerMembers {
 public:
  // Children of ours that no spawn() made and that are not of our session: what workers have left
  // behind. A program that embeds the launcher may have children of its own, in its own session.
  static std::vector<int> adopted_children();

  // `leaders`: the workers that are not reaped yet.
  static std::vector<ProcessRow> of(std::vector<int> leaders);

  // Sends `signal` to every member that was not asked yet: a second SIGTERM makes some programs
  // give up their clean-up. `session`: only to members of that one; 0 = all.
  void ask(const std::vector<int>& leaders, int signal, int session = 0);
  void forget_asked() { asked_.clear(); }

  static void kill(const std::vector<int>& leaders);

 private:
  std::set<int> asked_;
};

}  // namespace ddprun::launcher
