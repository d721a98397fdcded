// Who of an attempt's workers on this node is to blame, and by which words: what they have left
// (their ends, error files, what they printed, what the kernel says of them) becomes a cause.
//
// Looks into files and /proc and remembers nothing: when to look is local_attempt.cpp's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/output/worker_output.h"
#include "launcher/report/error_file.h"
#include "launcher/report/first_error.h"
#include "launcher/report/post_mortem.h"
#include "launcher/workers/worker_end.h"
#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {

WallNs wall_now();
// As a control message says it; 0 where a clock was set back.
std::int64_t ms_between(WallNs begin, WallNs end);

// A worker that was killed because it stood still or had left.
struct LostWorker {
  std::int64_t stood_ms = 0;
  std::string why;
};

// What is known of the attempt started last. Vectors by local rank.
struct AttemptRecord {
  rendezvous::RoundStart round;
  std::string folder;  // Of its error files; "": none.
  WallNs began_at = 0;
  std::optional<WallNs> stopped_at;
  int workers = 0;  // Also of one that could not be started.
  std::vector<int> pids;
  std::vector<WorkerOutput> outputs;
  std::set<int> parked;            // Pids.
  std::map<int, LostWorker> lost;  // By local rank.
  std::vector<WorkerEnd> ends;     // In the order in which they were seen.

  bool is_at_work(int local_rank) const;  // Neither ended nor parked.
};

class AttemptBlame {
 public:
  // Up to 8 KiB of what a worker that runs has printed last.
  using StderrTail = std::function<std::string(int local_rank)>;

  // `record` must outlive it.
  AttemptBlame(const AttemptRecord& record, std::string host_name, StderrTail stderr_tail);

  // Before its workers: what the kernel kills from now on is this attempt's.
  void attempt_starts() { post_mortem_.attempt_starts(); }

  // What this worker failed of by its own word, or by that of who has killed it; "": nobody says.
  std::string message_of(const WorkerEnd& end) const;

  rendezvous::FirstCause of_start(const std::string& message, int exit_code, bool retriable) const;
  // The one place where a worker's end becomes what travels to the other nodes.
  rendezvous::FirstCause of_end(const WorkerEnd& end) const;
  // Of those that have failed by themselves, the first one that names an error of its own; later
  // ones are most likely its victims. One at least has.
  rendezvous::FirstCause of_first_failure() const;
  // All that is known is that peers were lost, and somebody may still say why. `running`: how many
  // workers do.
  bool awaits_cause(int running) const;

  // Who lives and is the reason for this failure: others fail of it, and only that they have waited
  // in vain, or lost each other, is their word.
  std::optional<rendezvous::FirstCause> living_before(const rendezvous::FirstCause& failure) const;
  // The first error of its own that a worker had recorded before the attempt was stopped.
  std::optional<rendezvous::FirstCause> error_before_stop() const;

  // The error file of the worker on this node that `cause` blames, as it was read; "" = none.
  std::string error_file_of(const rendezvous::FirstCause& cause) const;

 private:
  rendezvous::FirstCause of_failed(const WorkerEnd& worker) const;
  rendezvous::FirstCause failure_of_rank(int local_rank) const;  // Who, where and in which attempt.
  rendezvous::FirstCause of_recorded(int local_rank, const ErrorFile& file) const;
  rendezvous::FirstCause of_living(int local_rank, std::string message,
                                   const rendezvous::FirstCause& failure) const;
  std::optional<rendezvous::FirstCause> halted_before(const rendezvous::FirstCause& failure) const;
  std::optional<rendezvous::FirstCause> uncaught_before(
      const rendezvous::FirstCause& failure) const;
  void advise_on_early_end(rendezvous::FirstCause& cause) const;
  std::string uncaught_of(int local_rank) const;
  std::optional<ErrorFile> read_error_file(int local_rank) const;
  std::map<int, ErrorFile> read_error_files() const;  // By local rank.
  std::vector<RecordedError> recorded(const std::map<int, ErrorFile>& files) const;
  std::string log_files(int local_rank) const;
  int rank_of(int local_rank) const { return record_.round.rank_base + local_rank; }

  const AttemptRecord& record_;
  std::string host_name_;
  StderrTail stderr_tail_;
  PostMortem post_mortem_;
};

bool failed_by_itself(const WorkerEnd& end);

}  // namespace ddprun::launcher
