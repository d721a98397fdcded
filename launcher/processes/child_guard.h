// A small process that outlives the launcher for a moment: when the launcher dies without a chance
// to clean up (SIGKILL, out of memory), it kills what the workers have started.
//
// The kernel's parent-death signal reaches only the workers themselves, not a Python that a shell
// wrapper started, nor its data loaders. The guard knows the workers' sessions, and it knows their
// processes by a variable in their environment that detaching does not remove.
#pragma once

#include <set>
#include <string>

#include "launcher/processes/child_sessions.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

// By which processes of workers are known, with a value of each guard's own.
inline constexpr const char* guard_variable_name = "DDPRUN_GUARD";

// Whether it is a guard, of whichever launcher, by its name.
bool is_guard(const ProcessRow& process);

// What a launcher that is killed leaves in the file system; "" = nothing.
struct LeftBehind {
  std::string folder;  // Removed, but for what may say why: remove_after_kill().
  std::string socket;  // And its folder, when it was the last in there.
};

class ChildGuard {
 public:
  // Forks the guard. `semaphores`: a set that it removes should the launcher have no chance to; -1
  // = none. Throws std::system_error when the fork fails.
  explicit ChildGuard(int semaphores = -1);
  ~ChildGuard();  // Ends the guard; it kills nothing.
  ChildGuard(const ChildGuard&) = delete;
  ChildGuard& operator=(const ChildGuard&) = delete;

  // To be set in every worker, as NAME=value.
  const std::string& variable() const { return variable_; }

  // Before the first worker. Until then it has neither its name nor a process group of its own: on
  // a busy machine a launcher that is itself the worker of another one might be killed before that,
  // and its guard with it. Forked a while before, it costs no time.
  void wait_until_it_runs();

  // Reaps a guard that somebody killed, and starts another one that knows the same. Whether it did.
  // Throws as the constructor does; the job then goes on without a guard.
  bool replace_if_ended();

  // Whether a process is a worker's, by what the guard itself goes by.
  bool knows(const ProcessRow& process) const;

  void add_session(int session_id);     // A worker was started.
  void remove_session(int session_id);  // No process of it is left.
  // Removed when this process is killed.
  void set_left_behind(LeftBehind left);

 private:
  void start();
  void send_left_behind();
  void tell(int record);

  std::string variable_;
  int semaphores_;
  std::set<int> sessions_;  // For a guard that takes another one's place.
  LeftBehind left_;
  rendezvous::UniqueFd socket_;
  int pid_ = -1;
  bool runs_ = false;
};

}  // namespace ddprun::launcher
