// A process that gets what others leave of CPUs and disks, for a while.
//
// Which of the kernel's means works depends on where this runs, so all are tried: nice of the
// session's scheduling group (autogroup, sched(7): without it a process's own nice counts only
// within its session), nice of the process where we may take it back, and the idle class of its
// disk accesses (ioprio_set(2)). Best effort: where none works, it runs like any other.
#pragma once

namespace ddprun::launcher {

// `pid`: a child just started, the leader of its session, without threads yet.
void lower_priority(int pid);

// That process, its threads and its descendants as they would be otherwise. False when the kernel
// wants to be asked again later: users may change a group ten times a second, all together.
bool restore_priority(int pid);

}  // namespace ddprun::launcher
