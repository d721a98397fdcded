// Why an attempt, or the whole job, ended: the first failure anywhere in it. Every node prints the
// same one, so it travels in control messages. Durations only: clocks of two machines are never
// compared. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::rendezvous {

// Exit statuses of `ddprun` that are not a worker's own (docs/failures.md).
namespace exit_status {
constexpr int usage = 2;
constexpr int unfit = 69;               // This node's --node-check said that it is not fit.
constexpr int internal = 70;            // ddprun itself could not go on: no port, no directory ...
constexpr int rendezvous_timeout = 71;  // Nodes were missing at the start, for the join timeout.
constexpr int coordinator_lost = 72;    // The connection to the endpoint broke.
constexpr int refused = 73;             // The endpoint has another secret, job or version.
constexpr int node_lost = 74;           // A node went away and no restarts were left.
constexpr int preempted = 75;           // SIGTERM, or lost nodes did not come back: queue it again.
}  // namespace exit_status

struct FirstCause {
  enum class Kind {
    WorkerFailed,  // A worker ended with `exit_code` or by `signal`.
    StartFailed,   // A worker could not be started; `message` says which program and why.
    NodeLost,      // A node's connection broke or fell silent; `message` says which of the two.
    // Somebody sent `signal` to the launcher on `host`; or, where there is a `message`, that node
    // is not fit for the job, says its --node-check, and leaves as by SIGTERM. With `starter_gone`
    // nobody sent it: that launcher has lost the session that had started it, by ssh or ddprun -H.
    Interrupted,
  };
  Kind kind = Kind::WorkerFailed;
  std::string host;    // The node's host name, as it announced itself.
  int node_rank = -1;  // The node's rank in the round; -1 = none yet.
  int rank = -1;       // The worker's global rank; -1 = no worker to blame.
  int local_rank = -1;
  int pid = 0;        // 0 = none.
  int exit_code = 0;  // Of the worker, when signal == 0.
  int signal = 0;     // Ended the worker, or was sent to the launcher.
  bool core_dumped = false;
  bool retriable = true;    // False: another attempt cannot end otherwise (missing program).
  int attempt = 0;          // In which attempt, counted from 0.
  std::int64_t ran_ms = 0;  // How long the worker had run.
  std::string message;      // From the worker's error file, or what the launcher saw.
  std::string last_stderr;  // The last lines the worker wrote there.

  // What else is known. A peer of another version may not send it.
  bool oom_killed = false;              // The kernel ended it because memory ran out.
  std::int64_t memory_limit_bytes = 0;  // Of its cgroup; 0 = none, or not known.
  std::int64_t memory_peak_bytes = 0;   // The same, of all in that cgroup.
  std::string core;                     // The core dump's path, or how to get at it.
  std::string log_files;                // Paths of its log files, a line each.
  std::string advice;                   // What to do about it, when the cause is a known one.
  // Set when it had recorded its error but not ended yet when the first worker did: that one, in
  // words; `exit_code` and `signal` are that one's, too, since they became the job's,
  // except where `usage_error` says with what this one is about to end.
  std::string ended_first;
  // The worker lived and said nothing new for so long, and its launcher killed it; 0: it did not.
  std::int64_t hung_ms = 0;
  std::int64_t age_ms = 0;  // How long before this was sent it had happened, as its node knows.
  // Its error file says that what its user gave is wrong (worker/error_file.h).
  bool usage_error = false;
  bool starter_gone = false;  // See Interrupted.
  // Its words tell of another worker's end, of a lost connection, or of a peer that was waited for
  // in vain, and of no error of its own.
  bool of_a_peer = false;
  // It lived, and was stopped (as by SIGSTOP), when a peer failed of its absence: `ended_first`.
  bool halted = false;

  bool operator==(const FirstCause&) const = default;
};

// The status with which a job that ended for this cause exits: the worker's own, 128+n for signal
// n, or one of exit_status.
int exit_status_of(const FirstCause& cause);

// A node left because it is not fit for the job.
bool is_of_unfit_node(const FirstCause& cause);

// A worker that ended with exit_status::preempted has stopped because it was told to, or because
// its time was over, and can go on later (`train` does so after it has saved): nobody is to blame,
// and another attempt now is not what it asks for.
bool asks_to_be_queued_again(const FirstCause& cause);

// What to do about a worker that lost a peer where `who` ("ranks 1, 3") had ended with 0 before:
// that is the cause, and no launcher can tell it from the end of the work.
std::string advice_on_early_end(std::string_view who);

// What to do about a node that was lost, of which nobody here knows more. `restarts`: the job may
// begin again.
std::string advice_on_lost_node(bool restarts);

// "SIGSEGV", or "signal 64" for numbers without a name.
std::string signal_name(int signal);

// One line: "rank 3 (pid 4127 on node1) was killed by SIGSEGV after 12 s".
std::string describe(const FirstCause& cause);

}  // namespace ddprun::rendezvous
