// Which processes belong to the workers, as /proc tells it: reading is here, judging is pure.
//
// A worker may start a shell that starts Python that starts data loaders, and any of them may
// detach. As the launcher is a child subreaper, all of them are its descendants for as long as it
// lives, whatever session or group they moved to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/processes/exit_status.h"

namespace ddprun::launcher {

struct ProcessRow {
  int pid = 0;
  int parent = 0;
  int group = 0;
  int session = 0;
  char state = '?';  // As in /proc/PID/stat: R, S, D, Z ...
  std::string name;  // The program's short name.
};

// One process; pid 0 when there is none (any more).
ProcessRow read_process(int pid);

// The thread ids of a process, ascending; none when there is no such process (any more).
std::vector<int> read_threads(int pid);

// Whether it is on its way out, or a zombie: it runs none of its own code any more.
bool is_exiting(int pid);

// How it will have ended, of a process that is exiting; nothing where that does not tell, and for a
// success, which looks like no news.
std::optional<ExitStatus> read_coming_status(int pid);

// Every process of the machine that /proc shows.
std::vector<ProcessRow> read_all_processes();

// The direct children of a process, where the kernel lists them.
std::optional<std::vector<int>> read_children(int pid);

// The direct children of this process.
std::vector<int> read_own_children();

// Pure: all processes of `table` below the processes `roots`, the roots included.
std::vector<ProcessRow> with_descendants(const std::vector<ProcessRow>& table,
                                         const std::vector<int>& roots);

// The same, read from /proc, without looking at processes that are not below `roots`.
std::vector<ProcessRow> read_with_descendants(const std::vector<int>& roots);

// The kernel function a process waits in, or "" when the kernel does not say.
std::string read_wait_channel(int pid);

}  // namespace ddprun::launcher
