// This node's part of an attempt: its workers, their directories, and what became of them.
//
// Passive: the agent starts and stops it and is told about the first failure and the end. Lives on
// the agent's io_context, in its thread.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/attempt_blame.h"
#include "launcher/options/launch_options.h"
#include "launcher/output/forwarder.h"
#include "launcher/output/run_directory.h"
#include "launcher/processes/life_watch.h"
#include "launcher/report/event_log.h"
#include "launcher/report/stderr_message.h"
#include "launcher/status/progress_pages.h"
#include "launcher/workers/worker_end.h"
#include "launcher/workers/worker_group.h"
#include "launcher/workers/worker_specs.h"
#include "rendezvous/control/control_message.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

struct LocalAttemptCallbacks {
  // The first worker that failed by itself in this attempt; comes at once, unless it only lost a
  // peer whose own error may be to come (cause_wait in report/first_error.h).
  std::function<void(const rendezvous::FirstCause&)> on_failure;
  // No worker is left.
  std::function<void()> on_all_reaped;
  // The attempt has fewer workers than this node could have now.
  std::function<void()> on_can_grow = {};
};

class LocalAttempt {
 public:
  // All references must outlive it.
  LocalAttempt(asio::io_context& io, OutputForwarder& output, EventLog& events,
               const LaunchOptions& options, std::string host_name,
               LocalAttemptCallbacks callbacks);

  // What the workers of all attempts get; none when it is never called.
  void set_worker_key(rendezvous::UniqueFd key) { worker_key_ = std::move(key); }
  // The path of this launcher's, which others find the job by. Again, when it is another one.
  void set_status_socket(std::string path) { group_.set_status_socket(std::move(path)); }

  // Starts the workers of a round. Returns why it could not; then none is running and no callback
  // comes.
  std::optional<rendezvous::FirstCause> start(const rendezvous::RoundStart& round);

  // The round that goes on has no place for this node, and the next one may: its spares warm up.
  void stand_by();

  // As WorkerGroup::stop().
  void stop(int signal, std::chrono::milliseconds grace, Keep keep = Keep::Nobody,
            const std::string& why = "");
  int kept() const { return group_.kept(); }
  void end_kept() { group_.end_kept(); }
  // With how many workers the next round may begin here without a wait (local_places.h).
  int workers_at_once() const;
  int workers() const { return static_cast<int>(filled_.size()); }  // Of the attempt started last.
  // To be called once it is known as started: a replacement may have become ready while it began.
  void look_whether_it_can_grow();
  void forward_signal(int signal) { group_.forward_signal(signal); }
  void halt() { group_.halt(); }
  void let_go() { group_.let_go(); }
  // Of this worker, which lives, and has stood still for so long (0: it has not): it is killed, and
  // `why` is what it failed of.
  // Should the kernel not let it end, it counts as failed all the same.
  void count_as_lost(int local_rank, std::chrono::milliseconds stood, const std::string& why);
  // The job is over.
  void stop_spares() { group_.stop_spares(); }
  int spares_ready() const { return group_.spares_ready(); }
  int running() const { return group_.running(); }
  std::vector<int> pids() const { return group_.pids(); }

  // Of the attempt started last.
  const rendezvous::RoundStart& round() const { return record_.round; }
  const std::vector<WorkerEnd>& ends() const { return record_.ends; }
  // Neither ended nor parked.
  bool is_at_work(int local_rank) const { return record_.is_at_work(local_rank); }
  // Should the attempt end for another one, it may keep its process.
  bool can_park(int local_rank) const;
  // Where NCCL's RAS service of this node's workers can be asked, HOST:PORT; "" = nowhere.
  const std::string& ras_address() const { return ras_address_; }
  // By local rank, also of those that have ended.
  const std::vector<int>& started_pids() const { return record_.pids; }
  const std::vector<WorkerOutput>& outputs() const { return record_.outputs; }
  // This worker has left the attempt with its process, and waits for the next one.
  bool is_parked(int pid) const { return record_.parked.contains(pid); }
  // Of a worker that runs.
  LastException last_exception(int local_rank);
  // What this worker says of itself.
  std::optional<RankProgress> progress(int local_rank) const { return pages_.read(local_rank); }
  const ProgressPages& pages() const { return pages_; }

  // The attempt is to be stopped for this failure of another node. Before stop(), which lets go on
  // whoever is halted.
  void look_at_living(const rendezvous::FirstCause& failure);

  // The first error that a worker had recorded before stop() was called, if none has been reported
  // as failed, or who look_at_living() has found: this node's part in the question which node's
  // worker was the first. That a peer was lost is no answer to it.
  std::optional<rendezvous::FirstCause> error_before_stop() const;

  // The error file of the worker on this node that `cause` blames, as it was read; "" = none.
  std::string error_file_of(const rendezvous::FirstCause& cause) const {
    return blame_.error_file_of(cause);
  }

  // After a failure: error files stay.
  void keep_files(bool errors_told);
  // Where to look for files once the job is over; "" when none stay.
  std::string kept_path() const { return directory_.kept_path(); }

  // Where files hold what the workers have written; "" when none does.
  std::string log_folder() const;

 private:
  void choose_ras_address();
  void await_reason(int local_rank);
  void fail_of(const WorkerEnd& worker);
  int restart_memory();  // -1: none is asked for. Throws std::system_error.
  void tell_who_went_on() const;
  SpareEvents spare_events();
  // What is removed should the launcher be killed: this folder, and the status socket.
  void guard(const std::string& folder);
  WorkerSpecInputs spec_inputs();
  std::vector<WorkerSpec> spare_specs(WorkerSpecInputs inputs) const;
  std::string make_folder(int attempt, int workers);  // "": no files.
  bool may_be_fewer() const { return options_.nproc_min < options_.nproc_per_node; }
  std::optional<WorkerStore> worker_store() const;
  void on_exit(WorkerEnd end);
  void look_for_cause();
  void on_all_reaped();

  asio::steady_timer cause_timer_;
  asio::steady_timer lost_timer_;
  asio::steady_timer left_timer_;
  bool somebody_left_ = false;  // In this attempt: the timer is the first one's.
  std::string ras_address_;
  bool sets_ras_address_ = false;  // For the workers: it is not the user's own.
  std::optional<std::chrono::steady_clock::time_point> cause_by_;  // Set while it is waited for.
  bool none_is_left_ = false;  // Meanwhile the last worker has been reaped.
  rendezvous::UniqueFd worker_key_;
  rendezvous::UniqueFd restart_memory_;
  ProgressPages pages_;
  EventLog& events_;
  const LaunchOptions& options_;
  std::string host_name_;
  LocalAttemptCallbacks callbacks_;
  RunDirectory directory_;
  WorkerGroup group_;
  AttemptRecord record_;
  AttemptBlame blame_;
  std::vector<int> filled_;   // Places that have a worker: by local rank.
  bool told_growth_ = false;  // In this attempt.
  bool stands_by_ = false;    // Since the attempt before, or the start.
  // For limits that span attempts. This is made as the launcher starts.
  const int launched_at_s_ = static_cast<int>(
      std::chrono::floor<std::chrono::seconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
  std::optional<rendezvous::FirstCause> living_cause_;  // As look_at_living() has found.
  bool failed_ = false;
  std::optional<LifeWatch> lives_;  // From the first attempt on.
  bool told_choices_ = false;       // What is the same in every attempt is told once.
  bool had_folder_ = false;         // For an attempt's files, or has been refused one.
};

}  // namespace ddprun::launcher
