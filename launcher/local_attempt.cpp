// Between the group, which knows processes, and the agent, which knows the job: here a process that
// ended becomes a cause with words, kernel facts and advice.
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
#include "launcher/processes/child_sessions.h"
#include "launcher/report/failure_advice.h"
#include "launcher/report/regular_file.h"
#include "launcher/report/stderr_message.h"
#include "launcher/stall/nccl_ras.h"
#include "launcher/stall/rank_names.h"
#include "launcher/workers/restart_memory_file.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using rendezvous::FirstCause;
using std::chrono::milliseconds;
constexpr milliseconds look_again{100};  // Error files appear without a sign.

WallNs wall_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// As a control message says it.
std::int64_t ms_between(WallNs begin, WallNs end) {
  return std::max<WallNs>(end - begin, 0) / 1'000'000;
}

bool failed_by_itself(const WorkerEnd& end) { return !end.success() && !end.stopped_by_us; }

bool says_a_peer_was_lost(const WorkerEnd& end) {
  if (!end.message.empty()) return names_a_lost_peer(end.message);
  return end.signal == 0 && last_words_name_a_lost_peer(end.last_stderr);
}

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
                 parked_.insert(pid);
                 events_.worker_parked(rank, local_rank, pid, parked_ms);
               },
           .on_left = [this](int local_rank) { await_reason(local_rank); }},
          {.shared_signals = options.signals_to_handle,
           .leftover_grace = std::min(options.shutdown_timeout, WorkerGroupLimits{}.leftover_grace),
           .failed_grace = options.shutdown_timeout}) {
  group_.keep_spares(options.spares, may_be_fewer() ? options.nproc_per_node : 0, spare_events(),
                     {.ready_by = options.spare_timeout});
  output.choose_colors(options.color, environment_variable("NO_COLOR"),
                       environment_variable("TERM"));
  output.on_resized([this] { group_.forward_signal(SIGWINCH); });
}

std::optional<FirstCause> LocalAttempt::start(const rendezvous::RoundStart& round) {
  group_.look_at_kept();  // Who has ended belongs to the attempt that is over.
  round_ = round;
  ends_.clear();
  pids_.clear();
  parked_.clear();
  lost_.clear();
  lost_timer_.cancel();
  left_timer_.cancel();
  failed_ = somebody_left_ = none_is_left_ = false;
  cause_by_.reset();
  stopped_at_.reset();
  living_cause_.reset();
  told_growth_ = stands_by_ = false;
  began_at_ = wall_now();
  const int workers = workers_here(options_, round);
  filled_ = places_for(group_.places(options_.nproc_per_node), workers);
  try {
    if (!told_choices_) choose_ras_address();
    attempt_dir_ = make_folder(round.attempt, workers);
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
    outputs_.clear();
    for (const WorkerSpec& spec : specs) outputs_.push_back(spec.output);
    pages_.clear();
    if (!lives_) lives_.emplace(pages_.life_words(), group_.on_ending());
    // Before the first worker: what the kernel kills for its memory from now on is this attempt's.
    post_mortem_.attempt_starts();
    group_.start(specs, spare_specs(inputs));
    // Kept: who has ended is in no list any more when its error is looked for.
    pids_ = group_.pids();
    for (std::size_t i = 0; i < specs.size(); ++i) {
      events_.worker_started(specs[i].rank, specs[i].local_rank, pids_[i],
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
    return blame_start(error.what(), code, !hopeless);
  } catch (const std::exception& error) {
    return blame_start(error.what(), rendezvous::exit_status::internal, /*retriable=*/false);
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
          .round = round_,
          .launched_at_s = launched_at_s_,
          .host_name = host_name_,
          .attempt_dir = attempt_dir_,
          .environment = environment_variable,
          .console_columns = terminal_columns(),
          .cpus = cpus_at_once,
          .places = asked_places(options_),
          .key_fd = worker_key_.get(),
          .memory_fd = restart_memory(),
          .progress_fd = pages_.fd(),
          .ras_address = sets_ras_address_ ? ras_address_ : "",
          .may_park = another_may_follow(options_, round_),
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
  for (std::size_t i = 0; i < pids_.size(); ++i) {
    if (!group_.was_kept(static_cast<int>(i))) continue;
    kept += fmt::format("{}{} (pid {})", kept.empty() ? "" : ", ",
                        round_.rank_base + static_cast<int>(i), pids_[i]);
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
  if (told_growth_ || stopped_at_ || !ends_.empty()) return;
  if (!can_grow(group_.places(options_.nproc_per_node), filled_)) return;
  told_growth_ = true;
  if (callbacks_.on_can_grow) callbacks_.on_can_grow();
}

std::optional<WorkerStore> LocalAttempt::worker_store() const {
  if (const auto host = own_store_host(options_, round_)) return WorkerStore{*host, free_port()};
  if (options_.worker_store && !told_choices_) {
    spdlog::warn(
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 has no effect with several nodes: the workers use "
        "ddprun's store, which starts empty in every attempt");
  }
  return std::nullopt;
}

FirstCause LocalAttempt::blame_start(const std::string& message, int exit_code, bool retriable) {
  FirstCause cause{.kind = FirstCause::Kind::StartFailed,
                   .host = host_name_,
                   .node_rank = round_.group_rank,
                   .exit_code = exit_code,
                   .retriable = retriable,
                   .attempt = round_.attempt,
                   .message = message};
  cause.advice = advice_for(cause);
  return cause;
}

void LocalAttempt::stop(int signal, milliseconds grace, Keep keep, const std::string& why) {
  if (!stopped_at_) stopped_at_ = wall_now();
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
  none_is_left_ = cause_by_ && !failed_ && !stopped_at_;
  if (!none_is_left_) callbacks_.on_all_reaped();
}

bool LocalAttempt::is_at_work(int local_rank) const {
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= pids_.size() || is_parked(pids_[index])) return false;
  return std::none_of(ends_.begin(), ends_.end(),
                      [&](const WorkerEnd& end) { return end.pid == pids_[index]; });
}

// Without a grace nobody has the time for it.
bool LocalAttempt::can_park(int local_rank) const {
  return options_.shutdown_timeout.count() > 0 && group_.can_park(local_rank);
}

// A worker that loses a peer may leave at once, before it has heard that the attempt is over. If
// nothing of it was lost but a connection, nobody else would ever end it.
void LocalAttempt::await_reason(int local_rank) {
  if (failed_ || stopped_at_ || std::exchange(somebody_left_, true)) return;
  const milliseconds limit = peer_word_limit(options_);
  left_timer_.expires_after(limit);
  left_timer_.async_wait([this, local_rank, limit](const asio::error_code& error) {
    if (error) return;
    const std::string why = fmt::format(
        "left the attempt, of which nothing else was lost within {}, and counts as lost",
        rendezvous::time_text(limit));
    spdlog::warn("rank {} {}: it gets SIGKILL", round_.rank_base + local_rank, why);
    count_as_lost(local_rank, {}, "it " + why);
  });
}

void LocalAttempt::count_as_lost(int local_rank, milliseconds stood, const std::string& why) {
  if (failed_ || stopped_at_ || !is_at_work(local_rank)) return;
  lost_[local_rank] = {.stood_ms = stood.count(), .why = why};
  group_.kill_worker(local_rank);
  // A process may hang in a driver, where SIGKILL does not reach it: the others need not wait for
  // that, and stop() says of it what is known.
  lost_timer_.expires_after(WorkerGroupLimits{}.kill_wait);
  lost_timer_.async_wait([this, local_rank](const asio::error_code& error) {
    if (error || failed_ || stopped_at_ || !is_at_work(local_rank)) return;
    fail_of(
        {.rank = round_.rank_base + local_rank,
         .local_rank = local_rank,
         .pid = pids_[static_cast<std::size_t>(local_rank)],
         .signal = SIGKILL,
         .ran_ms = ms_between(began_at_, wall_now()),
         .message = lost_[local_rank].why + "\nSIGKILL has not ended it: it hangs in the kernel"});
  });
}

void LocalAttempt::fail_of(const WorkerEnd& worker) {
  failed_ = true;
  callbacks_.on_failure(cause_of(worker));
}

void LocalAttempt::on_exit(WorkerEnd end) {
  if (const auto file = read_error_file(end.local_rank)) end.message = file->message;
  // A worker that we stopped may print a traceback of that; it is no news.
  if (end.message.empty() && !end.success() && !end.stopped_by_us) {
    end.message = message_from_stderr(end.stderr_tail, end.exit_code, end.signal);
  }
  if (const auto lost = lost_.find(end.local_rank); lost != lost_.end() && !end.stopped_by_us) {
    end.message = lost->second.why;
  }
  end.stderr_tail.clear();  // Up to 8 KiB a worker, read for the last time.
  ends_.push_back(std::move(end));
  const WorkerEnd& last = ends_.back();
  events_.worker_ended(last);
  if (cause_by_ || failed_by_itself(last)) look_for_cause();
}

// Of those that have failed by themselves, the first one that names an error of its own; later ones
// are most likely its victims.
void LocalAttempt::look_for_cause() {
  if (failed_ || stopped_at_) return;
  const auto now = std::chrono::steady_clock::now();
  if (awaits_cause() && now < cause_by_.value_or(now + cause_wait)) {
    if (!cause_by_) {
      cause_by_ = now + cause_wait;
      spdlog::info(
          "rank {} failed of a lost peer; for up to {} its node waits for that one's error",
          ends_.back().rank, rendezvous::time_text(cause_wait));
    }
    cause_timer_.expires_after(look_again);
    cause_timer_.async_wait([this](const asio::error_code& error) {
      if (!error) look_for_cause();
    });
    return;
  }
  failed_ = true;
  cause_timer_.cancel();
  const WorkerEnd* first = nullptr;
  for (const WorkerEnd& end : ends_) {
    if (!failed_by_itself(end)) continue;
    if (first == nullptr) first = &end;
    if (says_a_peer_was_lost(end)) continue;
    first = &end;
    break;
  }
  FirstCause cause = blame(*first);
  cause.of_a_peer = cause.of_a_peer || tells_of_a_late_peer(cause);
  if (cause.of_a_peer) advise_on_early_end(cause);
  if (auto living = living_before(cause)) cause = *std::move(living);
  for (WorkerEnd& end : ends_) {
    end.before_the_cause = cause_by_ && failed_by_itself(end) && end.pid != cause.pid;
  }
  callbacks_.on_failure(cause);
}

void LocalAttempt::advise_on_early_end(FirstCause& cause) const {
  std::vector<int> done;
  for (const WorkerEnd& end : ends_) {
    if (end.success()) done.push_back(end.rank);
  }
  if (!done.empty()) cause.advice = rendezvous::advice_on_early_end(rank_names(done));
}

bool LocalAttempt::awaits_cause() {
  const std::map<int, ErrorFile> files = read_error_files();
  std::vector<RecordedError> errors = recorded(files);
  for (const WorkerEnd& end : ends_) {
    if (!failed_by_itself(end) || files.contains(end.local_rank)) continue;
    errors.push_back(
        {.local_rank = end.local_rank, .of_a_peer = says_a_peer_was_lost(end), .ended = true});
  }
  for (int local_rank = 0; local_rank < workers(); ++local_rank) {
    if (files.contains(local_rank) || !is_at_work(local_rank)) continue;
    const std::string message =
        uncaught_exception_of(round_.rank_base + local_rank, group_.stderr_tail(local_rank));
    if (message.empty()) continue;
    errors.push_back({.local_rank = local_rank, .of_a_peer = names_a_lost_peer(message)});
  }
  // Another node tells of its own once it knows; this one hears of it by the stop.
  const bool others = round_.group_world_size > 1;
  return cause_is_to_come(errors, group_.running() + (others ? 1 : 0));
}

// ---- who failed ----

FirstCause LocalAttempt::blame(const WorkerEnd& worker) const {
  FirstCause ended = cause_of(worker);
  const std::map<int, ErrorFile> files = read_error_files();
  const auto now = wall_now();
  const std::chrono::nanoseconds ago = std::chrono::steady_clock::now() - worker.when;
  const FirstEnd end{worker.local_rank, now - ago.count(), says_a_peer_was_lost(worker)};
  const FirstError first = first_error(end, recorded(files));
  const auto file = files.find(first.local_rank);
  if (first.local_rank == worker.local_rank) {
    const WallNs at = file == files.end() ? end.at : std::min(end.at, file->second.recorded_at);
    ended.age_ms = ms_between(at, now);
    return ended;
  }
  spdlog::debug("local rank {} is to blame: {}", first.local_rank, first.reason);
  FirstCause cause = cause_of_recorded(first.local_rank, file->second);
  // The job's exit status is the one of a process that has ended, and of the first that did.
  if (!cause.usage_error) {
    cause.exit_code = ended.exit_code;
    cause.signal = ended.signal;
  }
  cause.ended_first = rendezvous::describe(ended);
  cause.advice = advice_for(cause);
  return cause;
}

FirstCause LocalAttempt::failure_of_rank(int local_rank) const {
  return {.kind = FirstCause::Kind::WorkerFailed,
          .host = host_name_,
          .node_rank = round_.group_rank,
          .rank = round_.rank_base + local_rank,
          .local_rank = local_rank,
          .pid = pids_.at(static_cast<std::size_t>(local_rank)),
          .attempt = round_.attempt,
          .log_files = log_files(local_rank)};
}

FirstCause LocalAttempt::cause_of_recorded(int local_rank, const ErrorFile& file) const {
  FirstCause cause = failure_of_rank(local_rank);
  // With this it is about to end, and the job must not begin again.
  cause.exit_code = file.usage_error ? rendezvous::exit_status::usage : 0;
  cause.ran_ms = ms_between(began_at_, file.recorded_at);
  cause.message = file.message;
  cause.age_ms = ms_between(file.recorded_at, wall_now());
  cause.usage_error = file.usage_error;
  cause.of_a_peer = names_a_lost_peer(file.message);
  return cause;
}

// With the end of who has ended, which the job's exit status is.
FirstCause LocalAttempt::cause_of_living(int local_rank, std::string message,
                                         const FirstCause& failure) const {
  FirstCause cause = failure_of_rank(local_rank);
  cause.exit_code = failure.exit_code;
  cause.signal = failure.signal;
  cause.ran_ms = ms_between(began_at_, wall_now());
  cause.message = std::move(message);
  cause.ended_first =
      failure.ended_first.empty() ? rendezvous::describe(failure) : failure.ended_first;
  return cause;
}

// Who is halted takes part in nothing and says nothing.
std::optional<FirstCause> LocalAttempt::halted_before(const FirstCause& failure) const {
  std::vector<int> halted;  // By local rank.
  std::vector<int> ranks;
  for (int local_rank = 0; local_rank < workers(); ++local_rank) {
    if (!is_at_work(local_rank)) continue;
    if (read_process(pids_[static_cast<std::size_t>(local_rank)]).state != 'T') continue;
    halted.push_back(local_rank);
    ranks.push_back(round_.rank_base + local_rank);
  }
  if (halted.empty()) return std::nullopt;
  FirstCause cause = cause_of_living(
      halted.front(),
      fmt::format("{} {} halted by a signal (state T), and took no part in what others waited for",
                  rank_names(ranks), ranks.size() == 1 ? "was" : "were"),
      failure);
  cause.halted = true;
  return cause;
}

// A program that an exception has ended may not get to its end: it waits for a thread, or a child.
std::optional<FirstCause> LocalAttempt::uncaught_before(const FirstCause& failure) {
  for (int local_rank = 0; local_rank < workers(); ++local_rank) {
    if (!is_at_work(local_rank)) continue;
    std::string message =
        uncaught_exception_of(round_.rank_base + local_rank, group_.stderr_tail(local_rank));
    if (message.empty()) continue;
    FirstCause cause = cause_of_living(local_rank, std::move(message), failure);
    if (names_a_lost_peer(cause.message) || tells_of_a_late_peer(cause)) continue;
    return cause;
  }
  return std::nullopt;
}

// Others fail of it, and only that they have waited in vain, or lost each other, is their word.
std::optional<FirstCause> LocalAttempt::living_before(const FirstCause& failure) {
  if (failure.kind != FirstCause::Kind::WorkerFailed || !failure.of_a_peer) return std::nullopt;
  std::optional<FirstCause> cause = uncaught_before(failure);
  const bool is_uncaught = cause.has_value();
  if (!cause) cause = halted_before(failure);
  if (!cause) return std::nullopt;
  cause->advice = advice_for(*cause);
  if (is_uncaught && cause->advice.empty()) {
    cause->advice =
        "it had printed this some time before, and its process did not end: Python waits for "
        "threads and child processes that are no daemons";
  }
  return cause;
}

void LocalAttempt::look_at_living(const FirstCause& failure) {
  if (!failed_ && !stopped_at_) living_cause_ = living_before(failure);
}

std::optional<FirstCause> LocalAttempt::error_before_stop() const {
  if (failed_ || !stopped_at_) return std::nullopt;
  const std::map<int, ErrorFile> files = read_error_files();
  const RecordedError* first = nullptr;
  const std::vector<RecordedError> errors = recorded(files);
  for (const RecordedError& error : errors) {
    if (error.succeeded || error.of_a_peer || error.at >= *stopped_at_) continue;
    if (first == nullptr || error.at < first->at) first = &error;
  }
  if (first == nullptr) return living_cause_;
  FirstCause cause = cause_of_recorded(first->local_rank, files.at(first->local_rank));
  cause.advice = advice_for(cause);
  return cause;
}

std::optional<ErrorFile> LocalAttempt::read_error_file(int local_rank) const {
  if (attempt_dir_.empty()) return std::nullopt;
  auto file = read_regular_file(fmt::format("{}/{}/error.json", attempt_dir_, local_rank),
                                error_file_bytes_max);
  if (!file) return std::nullopt;
  return parse_error_file(
      std::move(file->content),
      {.modified = file->modified_ns, .attempt_began = began_at_, .now = wall_now()});
}

bool LocalAttempt::says_usage_error(int local_rank) const {
  const auto file = read_error_file(local_rank);
  return file && file->usage_error;
}

std::map<int, ErrorFile> LocalAttempt::read_error_files() const {
  std::map<int, ErrorFile> files;
  for (int local_rank = 0; local_rank < workers(); ++local_rank) {
    auto file = read_error_file(local_rank);
    if (file && !file->message.empty()) files.emplace(local_rank, std::move(*file));
  }
  return files;
}

std::vector<RecordedError> LocalAttempt::recorded(const std::map<int, ErrorFile>& files) const {
  std::vector<RecordedError> errors;
  for (const auto& [local_rank, file] : files) {
    RecordedError error{.local_rank = local_rank,
                        .at = file.recorded_at,
                        .exact = file.exact,
                        .of_a_peer = names_a_lost_peer(file.message),
                        .whole = file.whole};
    for (const WorkerEnd& end : ends_) {
      if (end.local_rank != local_rank) continue;
      error.ended = true;
      error.succeeded = end.exit_code == 0 && end.signal == 0;
    }
    errors.push_back(error);
  }
  return errors;
}

std::string LocalAttempt::error_file_of(const FirstCause& cause) const {
  const auto local_rank = static_cast<std::size_t>(std::max(cause.local_rank, 0));
  if (cause.attempt != round_.attempt || local_rank >= pids_.size() || cause.host != host_name_ ||
      cause.node_rank != round_.group_rank || cause.pid != pids_[local_rank]) {
    return "";
  }
  const auto file = read_error_file(cause.local_rank);
  return file ? file->content : "";
}

// The one place where a worker's end becomes what travels to the other nodes.
FirstCause LocalAttempt::cause_of(const WorkerEnd& end) const {
  const KernelFacts kernel = post_mortem_.examine(end);
  FirstCause cause{.kind = FirstCause::Kind::WorkerFailed,
                   .host = host_name_,
                   .node_rank = round_.group_rank,
                   .rank = end.rank,
                   .local_rank = end.local_rank,
                   .pid = end.pid,
                   .exit_code = end.exit_code,
                   .signal = end.signal,
                   .core_dumped = end.core_dumped,
                   .attempt = round_.attempt,
                   .ran_ms = end.ran_ms,
                   .message = end.message,
                   .last_stderr = end.last_stderr,
                   .oom_killed = kernel.oom_killed,
                   .memory_limit_bytes = kernel.memory_limit_bytes,
                   .memory_peak_bytes = kernel.memory_peak_bytes,
                   .core = kernel.core,
                   .log_files = log_files(end.local_rank)};
  if (const auto lost = lost_.find(end.local_rank); lost != lost_.end() && end.signal == SIGKILL) {
    cause.hung_ms = lost->second.stood_ms;
    cause.oom_killed = false;  // The kernel may have killed something else of the job.
  }
  cause.retriable = !rendezvous::asks_to_be_queued_again(cause);
  cause.usage_error = says_usage_error(end.local_rank);
  cause.of_a_peer = says_a_peer_was_lost(end);
  cause.advice = advice_for(cause);
  return cause;
}

std::string LocalAttempt::log_files(int local_rank) const {
  const WorkerOutput& output = outputs_.at(static_cast<std::size_t>(local_rank));
  if (output.out.file.empty() || output.err.file.empty()) {
    return output.out.file + output.err.file;
  }
  return output.out.file + '\n' + output.err.file;
}

std::string LocalAttempt::log_folder() const {
  const bool any = std::any_of(outputs_.begin(), outputs_.end(), [](const WorkerOutput& output) {
    return !output.out.file.empty() || !output.err.file.empty();
  });
  return any ? attempt_dir_ : "";
}

void LocalAttempt::keep_files(bool errors_told) {
  directory_.keep_files(errors_told ? RunDirectory::Keep::WhatIsNotTold : RunDirectory::Keep::All);
}

}  // namespace ddprun::launcher
