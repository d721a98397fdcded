// How one worker ended: the one value that goes from the kernel's answer through the group and the
// attempt to the report, and from which the coordinator's FirstCause is made.
//
// A core: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ddprun::launcher {

struct WorkerEnd {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  int exit_code = 0;  // As in ExitStatus.
  int signal = 0;
  bool core_dumped = false;
  bool stopped_by_us = false;     // A victim: it was asked to end after somebody else had failed.
  bool before_the_cause = false;  // Of a lost peer, which told only later why it failed.
  std::int64_t ran_ms = 0;
  std::string message;  // What it said of its error; "" = nothing.
  std::string note;  // What else the user should know: a worker that SIGKILL did not end is named
                     // here with its kernel function.
  std::string last_stderr;  // The last lines it wrote to stderr.
  std::string stderr_tail;  // More of them: all that is kept, for finding a whole traceback.
  std::chrono::steady_clock::time_point when{};  // As the pidfd told, before any reaping work.

  bool success() const { return signal == 0 && exit_code == 0; }
};

}  // namespace ddprun::launcher
