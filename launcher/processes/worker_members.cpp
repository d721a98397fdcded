// Looked up anew each time: between two looks processes end, start others, and are adopted.
#include "launcher/processes/worker_members.h"

#include <signal.h>
#include <unistd.h>

#include "launcher/processes/child_guard.h"
#include "launcher/processes/child_process.h"

namespace ddprun::launcher {

std::vector<int> WorkerMembers::adopted_children(const std::set<int>& kept) {
  std::vector<int> adopted;
  const int own_session = ::getsid(0);
  // The first process of a container gets everybody's orphans, also of what an operator has started
  // in there (kubectl exec): of those it takes what has a worker's environment, and all that have
  // ended, which nobody else reaps.
  const bool is_init = ::getpid() == 1;
  for (int pid : read_own_children()) {
    if (is_spawned_child(pid)) continue;
    const ProcessRow row = read_process(pid);
    const bool alive = row.state != 'Z';
    if (is_init && alive && !has_in_environment(pid, guard_variable_name + std::string("=")))
      continue;
    const int session = row.session;
    if (session != own_session && !kept.contains(session)) adopted.push_back(pid);
  }
  return adopted;
}

std::vector<ProcessRow> WorkerMembers::of(std::vector<int> leaders, const std::set<int>& kept) {
  const std::vector<int> adopted = adopted_children(kept);
  leaders.insert(leaders.end(), adopted.begin(), adopted.end());
  return read_with_descendants(leaders);
}

void WorkerMembers::ask(const std::vector<int>& leaders, int signal, const std::set<int>& kept,
                        int session) {
  for (const ProcessRow& row : of(leaders, kept)) {
    if (row.state == 'Z' || (session != 0 && row.session != session)) continue;
    if (!asked_.insert(row.pid).second) continue;
    ::kill(row.pid, signal);
    if (row.state == 'T') ::kill(row.pid, SIGCONT);  // A stopped process could not answer.
  }
}

void WorkerMembers::kill(const std::vector<int>& leaders, const std::set<int>& kept) {
  for (const ProcessRow& row : of(leaders, kept)) {
    if (row.state != 'Z') ::kill(row.pid, SIGKILL);
  }
}

void WorkerMembers::kill_asked(const std::vector<int>& leaders, const std::set<int>& kept) const {
  for (const ProcessRow& row : of(leaders, kept)) {
    if (row.state != 'Z' && asked_.contains(row.pid)) ::kill(row.pid, SIGKILL);
  }
}

}  // namespace ddprun::launcher
