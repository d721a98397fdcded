// What the agent asks the system about the machine and process it runs in.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/machine/cpu_binding.h"
#include "rendezvous/environment.h"

namespace ddprun::launcher {

int usable_cpus();       // That this process may run on.
int cpus_at_once();      // The same, but for a quota of its control group.
int free_port();         // A TCP port that nobody has just now. Throws std::system_error.
int terminal_columns();  // Of the terminal on stdout; 0: it is none.
// File descriptors that this process could still open, and the limit (RLIMIT_NOFILE).
struct OpenFiles {
  std::size_t free = 0;
  std::size_t limit = 0;
};
OpenFiles open_files();
// The CPUs of each of this machine's workers.
std::vector<WorkerCpus> worker_places(NumaBinding binding, int workers);
// Of this process: by its name, its value.
using rendezvous::environment_variable;

}  // namespace ddprun::launcher
