// Between the group, which knows processes, and the agent, which knows the job: here the attempt
// begins, the first failure is waited for, and who hangs is given up. Who is to blame is
// attempt_blame.cpp's.
#include "launcher/local_attempt.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <exception>
#include <utility>

#include "launcher/attempt_choices.h"
#include "launcher/machine/this_machine.h"
#include "launcher/options/values.h"
#include "launcher/stall/nccl_ras.h"
#include "launcher/workers/restart_memory_file.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using rendezvous::FirstCause;
using std::chrono::milliseconds;
constexpr milliseconds look_again{100};  // Error files appear without a sign.

bool asks_for_files(const StdMap& map, int workers) {
  for (int i = 0; i < workers; ++i) {
    if (map.of(i) != Std::None) return true;
  }
  return false;
}

}  // namespace

LocalAttempt::LocalAttempt(asio::io_context& io, OutputForwarder& output, EventLog& events,
                           const LaunchOptions& options, std::string host_name,
                           LocalAttemptCallbacks callbacks)
    : cause_timer_(io),
      lost_timer_(io),
      left_timer_(io),
      pages_(options.nproc_per_node),
      events_(events),
      options_(options),
      host_name_(std::move(host_name)),
      callbacks_(std::move(callbacks)),
      directory_(options.log_dir, options.run_id,
                 asks_for_files(options.redirects, options.nproc_per_node) ||
                     asks_for_files(options.tee, options.nproc_per_node)),
      group_(
          io, output,
          {.on_exit = [this](const WorkerEnd& end) { on_exit(end); },
           .on_all_reaped = [this] { on_all_reaped(); },
           .on_parked =
               [this](int rank, int local_rank, int pid, std::int64_t parked_ms) {
                 record_.parked.insert(pid);
                 events_.worker_parked(rank, local_rank, pid, parked_ms);
               },
           .on_left = [this](int local_rank) { await_reason(local_rank); }},
          {.shared_signals = options.signals_to_handle,
           .leftover_grace = std::min(options.shutdown_timeout, WorkerGroupLimits{}.leftover_grace),
           .failed_grace = options.shutdown_timeout}),
      blame_(record_, host_name_,
             [this](int local_rank) { return group_.stderr_tail(local_rank); }) {
  group_.keep_spares(options.spares, may_be_fewer() ? options.nproc_per_node : 0, spare_events(),
                     {.ready_by = options.spare_timeout});
  output.choose_colors(options.color, environment_variable("NO_COLOR"),
                       environment_variable("TERM"));
  output.on_resized([this] { group_.forward_signal(SIGWINCH); });
}

std::optional<FirstCause> LocalAttempt::start(const rendezvous::RoundStart& round) {
  group_.look_at_kept();  // Who has ended belongs to the attempt that is over.
  filled_ = places_for(group_.places(options_.nproc_per_node), workers_here(options_, round));
  record_ = {};
  record_.round = round;
  record_.began_at = wall_now();
  record_.workers = workers();
  lost_timer_.cancel();
  left_timer_.cancel();
  failed_ = somebody_left_ = none_is_left_ = false;
  cause_by_.reset();
  living_cause_.reset();
  told_growth_ = stands_by_ = false;
  try {
    if (!told_choices_) choose_ras_address();
    record_.folder = make_folder(round.attempt, workers());
    guard(directory_.temporary_path());
    WorkerSpecInputs inputs = spec_inputs();
    inputs.worker_store = worker_store();
    if (!std::exchange(told_choices_, true)) {
      for (const std::string& note : placement_notes(inputs)) spdlog::info("{}", note);
      // Or what --redirects takes off the console would be nowhere that anybody knows of.
      if (const std::string kept = directory_.kept_path();
          options_.log_dir.empty() && !kept.empty())
        spdlog::info("files of the workers' output stay in {} (--log-dir names another place)",
                     kept);
    }
    const auto specs = make_worker_specs(inputs);
    for (const WorkerSpec& spec : specs) record_.outputs.push_back(spec.output);
    pages_.clear();
    if (!lives_) lives_.emplace(pages_.life_words(), group_.on_ending());
    // Before the first worker: what the kernel kills for its memory from now on is this attempt's.
    blame_.attempt_starts();
    group_.start(specs, spare_specs(inputs));
    // Kept: who has ended is in no list any more when its error is looked for.
    record_.pids = group_.pids();
    for (std::size_t i = 0; i < specs.size(); ++i) {
      events_.worker_started(specs[i].rank, specs[i].local_rank, record_.pids[i],
                             group_.was_spare(specs[i].local_rank),
                             group_.was_kept(specs[i].local_rank));
    }
    tell_who_went_on();
  } catch (const StartError& error) {
    // The codes of a shell: 127 not found, 126 found but not startable.
    const int number = error.error_number();
    const bool hopeless = number == ENOENT || number == EACCES || number == ENOEXEC ||
                          number == ENOTDIR || number == E2BIG || number == ELOOP;
    const int code = number == ENOENT ? 127 : hopeless ? 126 : rendezvous::exit_status::internal;
    return blame_.of_start(error.what(), code, !hopeless);
  } catch (const std::exception& error) {
    return blame_.of_start(error.what(), rendezvous::exit_status::internal, /*retriable=*/false);
  }
  return std::nullopt;
}

// Before the first attempt a folder that cannot be made is wrong usage. Later on a disk may be
// full, or away, and that is no reason for a job to end, least of all one of many nodes.
std::string LocalAttempt::make_folder(int attempt, int workers) {
  const bool is_first = !std::exchange(had_folder_, true);
  try {
    return directory_.make_attempt(attempt, workers,
                                   [this](const std::string& folder) { guard(folder); });
  } catch (const std::exception& error) {
    if (is_first) throw;
    spdlog::warn("{}: workers of attempt {} have no log and error files on this node", error.what(),
                 attempt);
    return "";
  }
}

WorkerSpecInputs LocalAttempt::spec_inputs() {
  return {.options = options_,
          .round = record_.round,
          .launched_at_s = launched_at_s_,
          .host_name = host_name_,
          .attempt_dir = record_.folder,
          .environment = environment_variable,
          .console_columns = terminal_columns(),
          .cpus = cpus_at_once,
          .places = asked_places(options_),
          .key_fd = worker_key_.get(),
          .memory_fd = restart_memory(),
          .progress_fd = pages_.fd(),
          .ras_address = sets_ras_address_ ? ras_address_ : "",
          .may_park = another_may_follow(options_, record_.round),
          .peer_word_limit = peer_word_limit(options_),
          .filled = filled_,
          .worker_store = {}};
}

void LocalAttempt::guard(const std::string& folder) {
  group_.guard(options_.nproc_per_node, folder);
}

// What a spare hears of a round comes with its rank, so none is needed to start it (spare_of()).
void LocalAttempt::stand_by() {
  if (options_.spares == 0 || std::exchange(stands_by_, true)) return;
  try {
    guard(directory_.temporary_path());
    group_.stand_by(spare_specs(spec_inputs()));
  } catch (const std::exception& error) {
    spdlog::warn("this node stands by without spares: {}", error.what());
  }
}

void LocalAttempt::tell_who_went_on() const {
  std::string kept;
  for (std::size_t i = 0; i < record_.pids.size(); ++i) {
    if (!group_.was_kept(static_cast<int>(i))) continue;
    kept += fmt::format("{}{} (pid {})", kept.empty() ? "" : ", ",
                        record_.round.rank_base + static_cast<int>(i), record_.pids[i]);
  }
  if (!kept.empty()) spdlog::info("in the process of the attempt before: rank {}", kept);
}

// One for all attempts. NCCL's own default is one port for all jobs of a machine, which the first
// process takes, whoever's it is.
void LocalAttempt::choose_ras_address() {
  if (!asks_nccl_ras(options_, environment_variable)) return;
  if (const auto own = environment_variable(ras_address_variable)) {
    ras_address_ = *own;
    return;
  }
  const int gpus = count_gpus(environment_variable("CUDA_VISIBLE_DEVICES"), "/dev");
  if (!gives_ras_address(options_, environment_variable, gpus)) return;
  ras_address_ = fmt::format("127.0.0.1:{}", free_port());
  sets_ras_address_ = true;
}

// One for all attempts.
int LocalAttempt::restart_memory() {
  if (options_.restart_memory == 0) return -1;
  if (!restart_memory_) restart_memory_ = make_restart_memory(options_.restart_memory);
  return restart_memory_.get();
}

SpareEvents LocalAttempt::spare_events() {
  return {.on_started = [this](int place, int pid) { events_.spare_started(place, pid); },
          .on_ready =
              [this](int place, int pid, std::int64_t warmed_ms) {
                events_.spare_ready(place, pid, warmed_ms);
                look_whether_it_can_grow();
              },
          .on_ended = [this](int place, int pid,
                             const ExitStatus& status) { events_.spare_ended(place, pid, status); },
          .on_given_up = [this] { look_whether_it_can_grow(); }};
}

// A place's spare is what its worker would be if all places had one. None where they can have no
// files: those are for later, and the workers are for now.
std::vector<WorkerSpec> LocalAttempt::spare_specs(WorkerSpecInputs inputs) const {
  const int wanted = may_be_fewer() ? options_.nproc_per_node : options_.spares;
  std::vector<WorkerSpec> spares;
  if (wanted == 0) return spares;
  inputs.filled.clear();
  try {
    for (const WorkerSpec& worker : make_worker_specs(inputs)) {
      if (worker.place >= wanted) break;
      const bool files = !worker.output.out.file.empty() || !worker.output.err.file.empty();
      spares.push_back(spare_of(worker, files ? directory_.make_spare(worker.place) : ""));
    }
  } catch (const std::system_error& error) {
    spdlog::warn("this attempt has no spares: {}", error.what());
    spares.clear();
  }
  return spares;
}

int LocalAttempt::workers_at_once() const {
  return launcher::workers_at_once(group_.places(options_.nproc_per_node), options_.nproc_min);
}

void LocalAttempt::look_whether_it_can_grow() {
  // Where one has ended well, the others are about to.
  if (told_growth_ || record_.stopped_at || !record_.ends.empty()) return;
  if (!can_grow(group_.places(options_.nproc_per_node), filled_)) return;
  told_growth_ = true;
  if (callbacks_.on_can_grow) callbacks_.on_can_grow();
}

std::optional<WorkerStore> LocalAttempt::worker_store() const {
  if (const auto host = own_store_host(options_, record_.round))
    return WorkerStore{*host, free_port()};
  if (options_.worker_store && !told_choices_) {
    spdlog::warn(
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 has no effect with several nodes: the workers use "
        "ddprun's store, which starts empty in every attempt");
  }
  return std::nullopt;
}

void LocalAttempt::stop(int signal, milliseconds grace, Keep keep, const std::string& why) {
  if (!record_.stopped_at) record_.stopped_at = wall_now();
  cause_timer_.cancel();
  lost_timer_.cancel();
  left_timer_.cancel();
  const bool ends_kept = keep == Keep::Nobody && group_.kept() > 0;  // And tells when it has.
  group_.stop(signal, grace, keep, why);
  if (!std::exchange(none_is_left_, false) || ends_kept) return;
  // Not in the caller's call, which expects no callbacks.
  asio::post(cause_timer_.get_executor(), [this] { callbacks_.on_all_reaped(); });
}

// Where all have lost a peer of another node, it is told of none that succeeded, but of the cause
// first.
void LocalAttempt::on_all_reaped() {
  none_is_left_ = cause_by_ && !failed_ && !record_.stopped_at;
  if (!none_is_left_) callbacks_.on_all_reaped();
}

LastException LocalAttempt::last_exception(int local_rank) {
  return last_exception_of(record_.round.rank_base + local_rank, group_.stderr_tail(local_rank));
}

// Without a grace nobody has the time for it.
bool LocalAttempt::can_park(int local_rank) const {
  return options_.shutdown_timeout.count() > 0 && group_.can_park(local_rank);
}

// A worker that loses a peer may leave at once, before it has heard that the attempt is over. If
// nothing of it was lost but a connection, nobody else would ever end it.
void LocalAttempt::await_reason(int local_rank) {
  if (failed_ || record_.stopped_at || std::exchange(somebody_left_, true)) return;
  const milliseconds limit = peer_word_limit(options_);
  left_timer_.expires_after(limit);
  left_timer_.async_wait([this, local_rank, limit](const asio::error_code& error) {
    if (error) return;
    const std::string why = fmt::format(
        "left the attempt, of which nothing else was lost within {}, and counts as lost",
        rendezvous::time_text(limit));
    spdlog::warn("rank {} {}: it gets SIGKILL", record_.round.rank_base + local_rank, why);
    count_as_lost(local_rank, {}, "it " + why);
  });
}

void LocalAttempt::count_as_lost(int local_rank, milliseconds stood, const std::string& why) {
  if (failed_ || record_.stopped_at || !is_at_work(local_rank)) return;
  record_.lost[local_rank] = {.stood_ms = stood.count(), .why = why};
  group_.kill_worker(local_rank);
  // A process may hang in a driver, where SIGKILL does not reach it: the others need not wait for
  // that, and stop() says of it what is known.
  lost_timer_.expires_after(WorkerGroupLimits{}.kill_wait);
  lost_timer_.async_wait([this, local_rank](const asio::error_code& error) {
    if (error || failed_ || record_.stopped_at || !is_at_work(local_rank)) return;
    fail_of({.rank = record_.round.rank_base + local_rank,
             .local_rank = local_rank,
             .pid = record_.pids[static_cast<std::size_t>(local_rank)],
             .signal = SIGKILL,
             .ran_ms = ms_between(record_.began_at, wall_now()),
             .message = record_.lost[local_rank].why +
                        "\nSIGKILL has not ended it: it hangs in the kernel"});
  });
}

void LocalAttempt::fail_of(const WorkerEnd& worker) {
  failed_ = true;
  callbacks_.on_failure(blame_.of_end(worker));
}

void LocalAttempt::on_exit(WorkerEnd end) {
  end.message = blame_.message_of(end);
  end.stderr_tail.clear();  // Up to 8 KiB a worker, read for the last time.
  record_.ends.push_back(std::move(end));
  const WorkerEnd& last = record_.ends.back();
  events_.worker_ended(last);
  if (cause_by_ || failed_by_itself(last)) look_for_cause();
}

void LocalAttempt::look_for_cause() {
  if (failed_ || record_.stopped_at) return;
  const auto now = std::chrono::steady_clock::now();
  if (blame_.awaits_cause(group_.running()) && now < cause_by_.value_or(now + cause_wait)) {
    if (!cause_by_) {
      cause_by_ = now + cause_wait;
      spdlog::info(
          "rank {} failed of a lost peer; for up to {} its node waits for that one's error",
          record_.ends.back().rank, rendezvous::time_text(cause_wait));
    }
    cause_timer_.expires_after(look_again);
    cause_timer_.async_wait([this](const asio::error_code& error) {
      if (!error) look_for_cause();
    });
    return;
  }
  failed_ = true;
  cause_timer_.cancel();
  const FirstCause cause = blame_.of_first_failure();
  for (WorkerEnd& end : record_.ends) {
    end.before_the_cause = cause_by_ && failed_by_itself(end) && end.pid != cause.pid;
  }
  callbacks_.on_failure(cause);
}

void LocalAttempt::look_at_living(const FirstCause& failure) {
  if (!failed_ && !record_.stopped_at) living_cause_ = blame_.living_before(failure);
}

std::optional<FirstCause> LocalAttempt::error_before_stop() const {
  if (failed_ || !record_.stopped_at) return std::nullopt;
  const std::optional<FirstCause> recorded = blame_.error_before_stop();
  return recorded ? recorded : living_cause_;
}

std::string LocalAttempt::log_folder() const {
  const bool any =
      std::any_of(record_.outputs.begin(), record_.outputs.end(), [](const WorkerOutput& output) {
        return !output.out.file.empty() || !output.err.file.empty();
      });
  return any ? record_.folder : "";
}

void LocalAttempt::keep_files(bool errors_told) {
  directory_.keep_files(errors_told ? RunDirectory::Keep::WhatIsNotTold : RunDirectory::Keep::All);
}

}  // namespace ddprun::launcher
