// A worker that ends first is not always the one that failed first (report/first_error.h), and who
// is the reason may live: halted, or at its end behind an exception.
#include "launcher/attempt_blame.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "launcher/processes/child_sessions.h"
#include "launcher/report/failure_advice.h"
#include "launcher/report/regular_file.h"
#include "launcher/report/stderr_message.h"
#include "launcher/stall/rank_names.h"

namespace ddprun::launcher {
namespace {

using rendezvous::FirstCause;

bool says_a_peer_was_lost(const WorkerEnd& end) {
  if (!end.message.empty()) return names_a_lost_peer(end.message);
  return end.signal == 0 && last_words_name_a_lost_peer(end.last_stderr);
}

}  // namespace

WallNs wall_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::int64_t ms_between(WallNs begin, WallNs end) {
  return std::max<WallNs>(end - begin, 0) / 1'000'000;
}

bool failed_by_itself(const WorkerEnd& end) { return !end.success() && !end.stopped_by_us; }

bool AttemptRecord::is_at_work(int local_rank) const {
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= pids.size() || parked.contains(pids[index])) return false;
  return std::none_of(ends.begin(), ends.end(),
                      [&](const WorkerEnd& end) { return end.pid == pids[index]; });
}

AttemptBlame::AttemptBlame(const AttemptRecord& record, std::string host_name,
                           StderrTail stderr_tail)
    : record_(record), host_name_(std::move(host_name)), stderr_tail_(std::move(stderr_tail)) {}

std::string AttemptBlame::message_of(const WorkerEnd& end) const {
  const auto lost = record_.lost.find(end.local_rank);
  if (lost != record_.lost.end() && !end.stopped_by_us) return lost->second.why;
  const auto file = read_error_file(end.local_rank);
  const std::string& message = file ? file->message : end.message;
  // A worker that we stopped may print a traceback of that; it is no news.
  if (!message.empty() || !failed_by_itself(end)) return message;
  return message_from_stderr(end.stderr_tail, end.exit_code, end.signal);
}

FirstCause AttemptBlame::of_start(const std::string& message, int exit_code, bool retriable) const {
  FirstCause cause{.kind = FirstCause::Kind::StartFailed,
                   .host = host_name_,
                   .node_rank = record_.round.group_rank,
                   .exit_code = exit_code,
                   .retriable = retriable,
                   .attempt = record_.round.attempt,
                   .message = message};
  cause.advice = advice_for(cause);
  return cause;
}

FirstCause AttemptBlame::of_first_failure() const {
  const WorkerEnd* first = nullptr;
  for (const WorkerEnd& end : record_.ends) {
    if (!failed_by_itself(end)) continue;
    if (first == nullptr) first = &end;
    if (says_a_peer_was_lost(end)) continue;
    first = &end;
    break;
  }
  FirstCause cause = of_failed(*first);
  cause.of_a_peer = cause.of_a_peer || tells_of_a_late_peer(cause);
  if (cause.of_a_peer) advise_on_early_end(cause);
  return living_before(cause).value_or(cause);
}

void AttemptBlame::advise_on_early_end(FirstCause& cause) const {
  std::vector<int> done;
  for (const WorkerEnd& end : record_.ends) {
    if (end.success()) done.push_back(end.rank);
  }
  if (!done.empty()) cause.advice = rendezvous::advice_on_early_end(rank_names(done));
}

bool AttemptBlame::awaits_cause(int running) const {
  const std::map<int, ErrorFile> files = read_error_files();
  std::vector<RecordedError> errors = recorded(files);
  for (const WorkerEnd& end : record_.ends) {
    if (!failed_by_itself(end) || files.contains(end.local_rank)) continue;
    errors.push_back(
        {.local_rank = end.local_rank, .of_a_peer = says_a_peer_was_lost(end), .ended = true});
  }
  for (int local_rank = 0; local_rank < record_.workers; ++local_rank) {
    if (files.contains(local_rank) || !record_.is_at_work(local_rank)) continue;
    const std::string message = uncaught_of(local_rank);
    if (message.empty()) continue;
    errors.push_back({.local_rank = local_rank, .of_a_peer = names_a_lost_peer(message)});
  }
  // Another node tells of its own once it knows; this one hears of it by the stop.
  const bool others = record_.round.group_world_size > 1;
  return cause_is_to_come(errors, running + (others ? 1 : 0));
}

// Where another one has recorded its error before, that one.
FirstCause AttemptBlame::of_failed(const WorkerEnd& worker) const {
  FirstCause ended = of_end(worker);
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
  FirstCause cause = of_recorded(first.local_rank, file->second);
  // The job's exit status is the one of a process that has ended, and of the first that did.
  if (!cause.usage_error) {
    cause.exit_code = ended.exit_code;
    cause.signal = ended.signal;
  }
  cause.ended_first = rendezvous::describe(ended);
  cause.advice = advice_for(cause);
  return cause;
}

FirstCause AttemptBlame::failure_of_rank(int local_rank) const {
  return {.kind = FirstCause::Kind::WorkerFailed,
          .host = host_name_,
          .node_rank = record_.round.group_rank,
          .rank = rank_of(local_rank),
          .local_rank = local_rank,
          .pid = record_.pids.at(static_cast<std::size_t>(local_rank)),
          .attempt = record_.round.attempt,
          .log_files = log_files(local_rank)};
}

FirstCause AttemptBlame::of_recorded(int local_rank, const ErrorFile& file) const {
  FirstCause cause = failure_of_rank(local_rank);
  // With this it is about to end, and the job must not begin again.
  cause.exit_code = file.usage_error ? rendezvous::exit_status::usage : 0;
  cause.ran_ms = ms_between(record_.began_at, file.recorded_at);
  cause.message = file.message;
  cause.age_ms = ms_between(file.recorded_at, wall_now());
  cause.usage_error = file.usage_error;
  cause.of_a_peer = names_a_lost_peer(file.message);
  return cause;
}

// With the end of who has ended, which the job's exit status is.
FirstCause AttemptBlame::of_living(int local_rank, std::string message,
                                   const FirstCause& failure) const {
  FirstCause cause = failure_of_rank(local_rank);
  cause.exit_code = failure.exit_code;
  cause.signal = failure.signal;
  cause.ran_ms = ms_between(record_.began_at, wall_now());
  cause.message = std::move(message);
  cause.ended_first =
      failure.ended_first.empty() ? rendezvous::describe(failure) : failure.ended_first;
  return cause;
}

// Who is halted takes part in nothing and says nothing.
std::optional<FirstCause> AttemptBlame::halted_before(const FirstCause& failure) const {
  std::vector<int> halted;  // By local rank.
  std::vector<int> ranks;
  for (int local_rank = 0; local_rank < record_.workers; ++local_rank) {
    if (!record_.is_at_work(local_rank)) continue;
    if (read_process(record_.pids[static_cast<std::size_t>(local_rank)]).state != 'T') continue;
    halted.push_back(local_rank);
    ranks.push_back(rank_of(local_rank));
  }
  if (halted.empty()) return std::nullopt;
  FirstCause cause = of_living(
      halted.front(),
      fmt::format("{} {} halted by a signal (state T), and took no part in what others waited for",
                  rank_names(ranks), ranks.size() == 1 ? "was" : "were"),
      failure);
  cause.halted = true;
  return cause;
}

std::string AttemptBlame::uncaught_of(int local_rank) const {
  return uncaught_exception_of(rank_of(local_rank), stderr_tail_(local_rank));
}

// A program that an exception has ended may not get to its end: it waits for a thread, or a child.
std::optional<FirstCause> AttemptBlame::uncaught_before(const FirstCause& failure) const {
  for (int local_rank = 0; local_rank < record_.workers; ++local_rank) {
    if (!record_.is_at_work(local_rank)) continue;
    std::string message = uncaught_of(local_rank);
    if (message.empty()) continue;
    FirstCause cause = of_living(local_rank, std::move(message), failure);
    if (names_a_lost_peer(cause.message) || tells_of_a_late_peer(cause)) continue;
    return cause;
  }
  return std::nullopt;
}

std::optional<FirstCause> AttemptBlame::living_before(const FirstCause& failure) const {
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

std::optional<FirstCause> AttemptBlame::error_before_stop() const {
  if (!record_.stopped_at) return std::nullopt;
  const std::map<int, ErrorFile> files = read_error_files();
  const RecordedError* first = nullptr;
  const std::vector<RecordedError> errors = recorded(files);
  for (const RecordedError& error : errors) {
    if (error.succeeded || error.of_a_peer || error.at >= *record_.stopped_at) continue;
    if (first == nullptr || error.at < first->at) first = &error;
  }
  if (first == nullptr) return std::nullopt;
  FirstCause cause = of_recorded(first->local_rank, files.at(first->local_rank));
  cause.advice = advice_for(cause);
  return cause;
}

std::optional<ErrorFile> AttemptBlame::read_error_file(int local_rank) const {
  if (record_.folder.empty()) return std::nullopt;
  auto file = read_regular_file(fmt::format("{}/{}/error.json", record_.folder, local_rank),
                                error_file_bytes_max);
  if (!file) return std::nullopt;
  return parse_error_file(
      std::move(file->content),
      {.modified = file->modified_ns, .attempt_began = record_.began_at, .now = wall_now()});
}

std::map<int, ErrorFile> AttemptBlame::read_error_files() const {
  std::map<int, ErrorFile> files;
  for (int local_rank = 0; local_rank < record_.workers; ++local_rank) {
    auto file = read_error_file(local_rank);
    if (file && !file->message.empty()) files.emplace(local_rank, std::move(*file));
  }
  return files;
}

std::vector<RecordedError> AttemptBlame::recorded(const std::map<int, ErrorFile>& files) const {
  std::vector<RecordedError> errors;
  for (const auto& [local_rank, file] : files) {
    RecordedError error{.local_rank = local_rank,
                        .at = file.recorded_at,
                        .exact = file.exact,
                        .of_a_peer = names_a_lost_peer(file.message),
                        .whole = file.whole};
    for (const WorkerEnd& end : record_.ends) {
      if (end.local_rank != local_rank) continue;
      error.ended = true;
      error.succeeded = end.exit_code == 0 && end.signal == 0;
    }
    errors.push_back(error);
  }
  return errors;
}

std::string AttemptBlame::error_file_of(const FirstCause& cause) const {
  const auto local_rank = static_cast<std::size_t>(std::max(cause.local_rank, 0));
  if (cause.attempt != record_.round.attempt || local_rank >= record_.pids.size() ||
      cause.host != host_name_ || cause.node_rank != record_.round.group_rank ||
      cause.pid != record_.pids[local_rank]) {
    return "";
  }
  const auto file = read_error_file(cause.local_rank);
  return file ? file->content : "";
}

FirstCause AttemptBlame::of_end(const WorkerEnd& end) const {
  const KernelFacts kernel = post_mortem_.examine(end);
  FirstCause cause{.kind = FirstCause::Kind::WorkerFailed,
                   .host = host_name_,
                   .node_rank = record_.round.group_rank,
                   .rank = end.rank,
                   .local_rank = end.local_rank,
                   .pid = end.pid,
                   .exit_code = end.exit_code,
                   .signal = end.signal,
                   .core_dumped = end.core_dumped,
                   .attempt = record_.round.attempt,
                   .ran_ms = end.ran_ms,
                   .message = end.message,
                   .last_stderr = end.last_stderr,
                   .oom_killed = kernel.oom_killed,
                   .memory_limit_bytes = kernel.memory_limit_bytes,
                   .memory_peak_bytes = kernel.memory_peak_bytes,
                   .core = kernel.core,
                   .log_files = log_files(end.local_rank)};
  if (const auto lost = record_.lost.find(end.local_rank);
      lost != record_.lost.end() && end.signal == SIGKILL) {
    cause.hung_ms = lost->second.stood_ms;
    cause.oom_killed = false;  // The kernel may have killed something else of the job.
  }
  cause.retriable = !rendezvous::asks_to_be_queued_again(cause);
  const auto file = read_error_file(end.local_rank);
  cause.usage_error = file && file->usage_error;
  cause.of_a_peer = says_a_peer_was_lost(end);
  cause.advice = advice_for(cause);
  return cause;
}

std::string AttemptBlame::log_files(int local_rank) const {
  const WorkerOutput& output = record_.outputs.at(static_cast<std::size_t>(local_rank));
  if (output.out.file.empty() || output.err.file.empty()) {
    return output.out.file + output.err.file;
  }
  return output.out.file + '\n' + output.err.file;
}

}  // namespace ddprun::launcher
