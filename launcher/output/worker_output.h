// Where a worker's output goes: decided before there is a worker, by those who know neither pipes
// nor an event loop.
//
// A core: plain values.
#pragma once

#include <string>
#include <vector>

#include "launcher/output/log_rotation.h"
#include "launcher/output/prefix.h"

namespace ddprun::launcher {

// Where one stream of one worker goes.
struct StreamOutput {
  bool console = true;                 // To ddprun's own stdout or stderr, line by line.
  std::string file;                    // Path of the log file; "" = none. console + file = tee.
  LogRotation rotation{};              // Of this file, and of the filtered one.
  std::string filtered_file{};         // Gets the lines with any of `filters`; "" = none.
  std::vector<std::string> filters{};  // Several workers may name the same file.
  bool prefixed = true;                // Console lines begin with the worker's prefix.
};

struct WorkerOutput {
  StreamOutput out;    // The worker's stdout.
  StreamOutput err;    // The worker's stderr.
  std::string prefix;  // Put before console lines, e.g. "[default0]:"; "" = none.
  int local_rank = 0;
  bool pty = false;       // Both streams are pseudo-terminals (pty.h).
  bool collapse = false;  // Equal lines of several workers become one, with this prefix:
  LinePrefix collapsed_prefix;
};

}  // namespace ddprun::launcher
