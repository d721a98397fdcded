// SIGKILL to a process and to all that it has started, whatever session or group that moved to.
//
// Guards are left out: a worker, a spare or a node's check may be a ddprun itself, whose guard ends
// what that one has started and nobody else knows of, takes its folder and its semaphores away, and
// then ends by itself. Who waits for everything to be gone waits for it as well, and kills it
// should it not end: any program may call itself so.
#pragma once

#include <vector>

#include "launcher/processes/child_sessions.h"

namespace ddprun::launcher {

void kill_tree(int pid);

// The same of what was looked up. Zombies are let be.
void kill_all(const std::vector<ProcessRow>& processes);
void kill_guards(const std::vector<ProcessRow>& processes);  // Of these the guards alone.

}  // namespace ddprun::launcher
