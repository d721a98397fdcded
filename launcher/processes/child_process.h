// One worker process: started as the leader of its own session, watched through a pidfd, reaped.
//
// Passive: tells nothing by itself; the owner waits for `pidfd()` to become readable and calls
// reap(). The calling thread must live as long as the child: the kernel's parent-death signal is
// tied to it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/processes/death_order.h"
#include "launcher/processes/exit_status.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

std::vector<std::string> own_environment();  // "NAME=value", all of it.

// What a child is started with. The child has exactly descriptors 0, 1 and 2, with `key_fd` 3, with
// `spare_fd` 4, with `memory_fd` 5 and with `progress_fd` 6; every other one of this process is
// closed in it. Signal mask empty, all dispositions default.
struct ChildSetup {
  std::vector<std::string> argv;         // argv[0] is a path, or is looked up on PATH.
  std::vector<std::string> environment;  // "NAME=value", all of it.
  int stdin_fd = -1;                     // Becomes descriptor 0; -1 = ours. Stays the caller's.
  int stdout_fd = -1;                    // The same for 1.
  int stderr_fd = -1;                    // The same for 2.
  int key_fd = -1;                       // Becomes descriptor 3 (rendezvous/worker_key.h).
  int spare_fd = -1;       // Becomes descriptor 4 (rendezvous/contract/spare_channel.h).
  int memory_fd = -1;      // Becomes descriptor 5 (worker/restart_memory.h).
  int progress_fd = -1;    // Becomes descriptor 6 (rendezvous/contract/progress_page.h).
  DeathMarks death_marks;  // Best effort.
  std::vector<int> cpus;   // It may run on these alone; empty = as we do.
};

// Its end closes the pidfd; it neither kills nor reaps.
class ChildProcess {
 public:
  // Starts it. On failure returns nothing and sets `error_number` (ENOENT: no such program,
  // EACCES: not executable, ENOEXEC: neither a binary nor a script with "#!", EAGAIN, EMFILE ...);
  // no process is left. When this process dies, by any signal, so does the child.
  static std::optional<ChildProcess> spawn(const ChildSetup& setup, int& error_number);

  int pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  // Why it could not be bound to ChildSetup::cpus, and runs where we may: an errno, or 0.
  int binding_error() const { return binding_error_; }

  // Ended, but perhaps not yet reaped.
  bool has_ended() const;

  // The exit status if it has ended, which frees its pid; nothing while it runs.
  std::optional<ExitStatus> reap();
  bool reaped() const { return reaped_; }

  // To the process alone; nothing happens when it has ended.
  void send(int signal) const;
  // To its process group. Call only before reap(): until then nobody else can have this group id.
  void send_to_group(int signal) const;

 private:
  ChildProcess(int pid, rendezvous::UniqueFd pidfd, int binding_error)
      : pid_(pid), pidfd_(std::move(pidfd)), binding_error_(binding_error) {}

  int pid_ = -1;
  rendezvous::UniqueFd pidfd_;
  int binding_error_ = 0;
  bool reaped_ = false;
};

// Lets this process have as many files open as it may ever: each store client is one. What spawn()
// starts gets the limit back that we were given, since programs that use select() rely on it.
void raise_open_files_limit();

// Whether `pid` was started by spawn() in this process, or added here, and is not reaped yet. Any
// other child in another session was adopted: a worker's descendant whose parent is gone.
bool is_spawned_child(int pid);
void add_spawned_child(int pid);
void remove_spawned_child(int pid);

}  // namespace ddprun::launcher
