// One worker to start: what is decided of it before it is a process.
//
// A core: plain values.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/output/worker_output.h"

namespace ddprun::launcher {

struct WorkerSpec {
  int local_rank = 0;
  int place = 0;  // On this node (local_places.h): the same, unless some places have no worker.
  int rank = 0;
  std::vector<std::string> argv;  // argv[0] is a path or is looked up on PATH.
  std::vector<std::pair<std::string, std::string>> variables;  // On top of the agent's environment.
  WorkerOutput output;                                         // Where stdout and stderr go.
  int key_fd = -1;        // Of the workers' key; -1 = none. Stays its owner's.
  bool is_spare = false;  // Waits for its rank ...
  // ... at this end of its channel (rendezvous/contract/spare_channel.h). As key_fd.
  int channel_fd = -1;
  bool keeps_channel = false;     // May be given another rank by its channel when it is a worker.
  int memory_fd = -1;             // Of --restart-memory; -1 = none. Its owner's, too.
  int progress_fd = -1;           // Of all workers' progress pages; -1 = none. As memory_fd.
  bool outlives_session = false;  // It goes on when nobody reads our stdout any more (--stay).
  std::vector<int> cpus;          // It may run on these alone; empty = as inherited.
};

}  // namespace ddprun::launcher
