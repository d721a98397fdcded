// What people read when a job failed: the first cause, and what became of the others. The same
// cause on every node; the list of workers is this node's.
//
// A core: values in, text out.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/workers/worker_end.h"
#include "rendezvous/control/first_cause.h"

namespace ddprun::launcher {

// Workers stood still; what was found out about it then.
struct StallNote {
  int attempt = 0;
  std::vector<int> behind;  // Ranks; none: nobody knows.
  std::string why;
  std::string stacks;  // Of all ranks of this node.
  // Of all ranks of the job, equal ones once, or why they are not here; "" = not asked for.
  std::string job_stacks;
  std::string nccl_ras;  // What NCCL's RAS service has answered, or why it has not; "" = not asked.
};

struct FailureReport {
  std::string run_id;
  int node_rank = -1;        // Of this node in the last round; -1 = it was in none.
  std::int64_t ended_s = 0;  // When, in seconds since 1970.
  std::string program;       // As the user wrote it.
  std::string this_host;     // To tell the cause's host from ours.
  int exit_status = 0;       // Of ddprun.
  int attempts = 1;          // Started in all.
  int max_restarts = 0;
  std::string why;  // What ended the job: its cause in words, or what came of that.
  std::optional<rendezvous::FirstCause> cause;
  std::vector<WorkerEnd> local_workers;
  std::string culprits_error_file;  // As it wrote it, when it was a worker of this node.
  std::string log_dir;              // Of the last attempt; "" = no log files.
  std::vector<StallNote> stalls;    // Of all attempts.
};

// A block of about 50 lines at most, without a trailing newline. Only for a job that failed.
std::string to_text(const FailureReport& report);

// What a worker said that ended with code 2, in its error file and not on stderr: it refuses what
// it was given, and there is nothing to find out about its death. "" for any other end.
std::string usage_text(const FailureReport& report);

// Whether to_text() holds all that this node's workers left in their error files.
bool tells_all(const FailureReport& report);

// The same as one JSON object, also for a job that succeeded; docs/failures.md lists the fields.
std::string to_json(const FailureReport& report);

nlohmann::json to_json(const rendezvous::FirstCause& cause);

// For a scheduler that reads torch's error files: the culprit's own, with its exit code in it, as
// torchrun passes it on; where there is none, the cause in the same format.
std::string to_error_file(const FailureReport& report);

}  // namespace ddprun::launcher
