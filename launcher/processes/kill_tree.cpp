// One look for each call: what is forked between the look and the signal is the caller's to find.
#include "launcher/processes/kill_tree.h"

#include <signal.h>

#include "launcher/processes/child_guard.h"

namespace ddprun::launcher {

void kill_tree(int pid) { kill_all(read_with_descendants({pid})); }

void kill_all(const std::vector<ProcessRow>& processes) {
  for (const ProcessRow& row : processes) {
    if (row.state != 'Z' && !is_guard(row)) ::kill(row.pid, SIGKILL);
  }
}

void kill_guards(const std::vector<ProcessRow>& processes) {
  for (const ProcessRow& row : processes) {
    if (row.state != 'Z' && is_guard(row)) ::kill(row.pid, SIGKILL);
  }
}

}  // namespace ddprun::launcher
