// Looked up anew each time: between two looks processes end, start others, and are adopted.
#include "launcher/processes/worker_members.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "launcher/processes/child_process.h"
#include "launcher/processes/kill_tree.h"

namespace ddprun::launcher {

void WorkerMembers::attempt_starts() {
  asked_.clear();
  seen_.clear();
}

std::vector<int> WorkerMembers::adopted_children() {
  std::vector<int> adopted;
  const int own_session = ::getsid(0);
  for (int pid : read_own_children()) {
    if (is_spawned_child(pid)) continue;
    if (read_process(pid).session != own_session) adopted.push_back(pid);
  }
  return adopted;
}

std::vector<int> WorkerMembers::left_behind(const std::vector<int>& adopted,
                                            const std::set<int>& kept) const {
  std::vector<int> left;
  for (const int pid : adopted) {
    const ProcessRow row = read_process(pid);
    if (kept.contains(row.session)) continue;
    const bool known = guard_ != nullptr && guard_->knows(row);
    // The environment goes first, and what a process holds may be in the next attempt's way until
    // it is gone.
    if (known || seen_.contains(pid) || is_exiting(pid)) left.push_back(pid);
  }
  return left;
}

bool WorkerMembers::outlives_workers(const ProcessRow& row) {
  return row.name == "torch_shm_manag";  // The kernel's name for torch_shm_manager.
}

std::vector<ProcessRow> WorkerMembers::of(std::vector<int> leaders, const std::set<int>& kept) {
  const std::vector<int> left = left_behind(adopted_children(), kept);
  leaders.insert(leaders.end(), left.begin(), left.end());
  const std::vector<ProcessRow> rows = read_with_descendants(leaders);
  for (const ProcessRow& row : rows) seen_.insert(row.pid);
  return rows;
}

void WorkerMembers::ask(const std::vector<int>& leaders, int signal, const std::set<int>& kept,
                        int session) {
  const std::vector<ProcessRow> rows = of(leaders, kept);
  for (const ProcessRow& row : rows) {
    if (row.state == 'Z' || (session != 0 && row.session != session)) continue;
    if (outlives_workers(row)) continue;
    if (!asked_.insert(row.pid).second) continue;
    ::kill(row.pid, signal);
    if (row.state == 'T') ::kill(row.pid, SIGCONT);  // A stopped process could not answer.
  }
  // Who is not reaped is there, with its group, also where no /proc is mounted to tell of it.
  for (const int pid : leaders) {
    const bool told = std::ranges::any_of(rows, [&](const auto& row) { return row.pid == pid; });
    if (!told && session == 0 && asked_.insert(pid).second) ::kill(-pid, signal);
  }
}

// Again until nobody is new: one may have started others between the look and its signal.
void WorkerMembers::halt(const std::vector<int>& leaders) {
  for (bool look = true; look;) {
    look = false;
    for (const ProcessRow& row : of(leaders)) {
      if (row.state == 'Z' || row.state == 'T' || row.state == 't') continue;
      if (!halted_.insert(row.pid).second) continue;
      look = ::kill(row.pid, SIGSTOP) == 0 || look;
    }
  }
}

void WorkerMembers::let_go() {
  for (const int pid : std::exchange(halted_, {})) ::kill(pid, SIGCONT);
}

void WorkerMembers::kill(const std::vector<int>& leaders, const std::set<int>& kept) {
  kill_all(of(leaders, kept));
}

void WorkerMembers::kill_guards(const std::vector<int>& leaders, const std::set<int>& kept) {
  launcher::kill_guards(of(leaders, kept));
}

void WorkerMembers::kill_asked(const std::vector<int>& leaders, const std::set<int>& kept) {
  std::vector<ProcessRow> asked = of(leaders, kept);
  std::erase_if(asked, [this](const ProcessRow& row) { return !asked_.contains(row.pid); });
  kill_all(asked);
}

}  // namespace ddprun::launcher
