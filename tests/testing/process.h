// Real processes for end-to-end tests: start one, read what it says, wait for it with a deadline,
// kill it, and see whether anything of it is left.
//
// Everything is waited for (output, pidfds), nothing is slept for; each limit is stretched on a
// busy machine (patience.h). A Process that goes out of scope kills itself and its descendants, so
// a failed test leaves nothing behind; the kernel does the same for the started process when the
// test itself is killed. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/temporary_folder.h"

namespace ddprun::testing {

// How a process ended.
struct ProcessResult {
  bool ended = false;  // False: it still ran at the deadline; `output` is what it said so far.
  int status = -1;     // As a shell says it: the exit code, or 128 + the signal's number.
  std::string output;  // stdout and stderr, as they came.
  double seconds = 0;  // From start to end.
};

class Process {
 public:
  // Starts argv[0] (a path, or looked up on PATH) with `variables` on top of this process's
  // environment less what would make it part of a job (RANK, MASTER_ADDR, PET_*, SLURM_* ...).
  // Throws std::system_error when it cannot be started.
  explicit Process(const std::vector<std::string>& argv,
                   const std::map<std::string, std::string>& variables = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int pid() const { return pid_; }

  // Reads what it has said by now, and waits for nothing: for tests that it did not say something.
  void read_pending();

  // Reads until its output holds `text`. False when it ends, or `limit` passes, before that.
  bool wait_for_output(std::string_view text, std::chrono::milliseconds limit);

  // Reads (its pipe would fill up otherwise) until `done`, which is asked again and again. False
  // when `limit` passes before that.
  bool wait_until(const std::function<bool()>& done,
                  std::chrono::milliseconds limit = std::chrono::seconds(60));

  // Reads until it has ended, and reaps it.
  ProcessResult wait(std::chrono::milliseconds limit);

  void send_signal(int signal) const;  // To this process alone.

  const std::string& output() const { return output_; }  // Read so far.

 private:
  bool pump(int timeout_ms);  // Reads what is there; false once the process has ended.
  void reap();

  int pid_ = -1;
  int pidfd_ = -1;
  int pipe_ = -1;    // Read end of its stdout and stderr.
  int status_ = -1;  // Valid once pid_ was reaped.
  bool reaped_ = false;
  std::string output_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::duration ran_for_{};
};

// Starts, waits, returns: for programs that end by themselves.
ProcessResult run(const std::vector<std::string>& argv, std::chrono::milliseconds limit,
                  const std::map<std::string, std::string>& variables = {});

// All living descendants of a process, parents first. Those of a process that has died are not
// found: ask before killing it.
std::vector<int> descendants_of(int pid);

// Living descendants whose program file has this name ("train").
std::vector<int> descendants_running(int pid, std::string_view program_name);

// True once every one of these processes has ended; false when one still lives after `limit`.
bool wait_until_gone(const std::vector<int>& pids, std::chrono::milliseconds limit);

// A TCP port of 127.0.0.1 that was free just now.
std::uint16_t free_port();

}  // namespace ddprun::testing
