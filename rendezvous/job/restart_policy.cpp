// How often, and how soon, a job that failed tries again.
#include "rendezvous/job/restart_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <string_view>
#include <utility>

#include "rendezvous/control/last_line.h"
#include "rendezvous/counted.h"
#include "rendezvous/time_text.h"

namespace ddprun::rendezvous {
namespace {

// Alike in what a person would call the same failure: how it ended, and either who it was or the
// last words. When all workers fail for the same reason, any of them may be the first.
bool alike(const FirstCause& one, const FirstCause& other) {
  if (one.kind != other.kind || one.exit_code != other.exit_code || one.signal != other.signal) {
    return false;
  }
  const std::string_view words = last_line(one.last_stderr);
  return (one.host == other.host && one.rank == other.rank) ||
         (!words.empty() && words == last_line(other.last_stderr));
}

// A node, or a worker that somebody has killed: not the kernel for its memory, nor ddprun.
bool came_from_outside(const FirstCause& cause) {
  if (cause.kind == FirstCause::Kind::NodeLost) return true;
  return cause.kind == FirstCause::Kind::WorkerFailed && cause.signal == SIGKILL &&
         !cause.oom_killed && cause.hung_ms == 0;
}

// The next of a sequence of numbers that look random (splitmix64, Steele et al. 2014).
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t mixed = (state += 0x9e3779b97f4a7c15);
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

}  // namespace

bool shows_a_wrong_command(const FirstCause& cause) {
  return cause.kind == FirstCause::Kind::WorkerFailed && cause.usage_error && cause.attempt == 0 &&
         cause.signal == 0 && cause.exit_code == exit_status::usage;
}

void RestartPolicy::end_row_if_healthy(Milliseconds attempt_ran, bool progressed) {
  if (!progressed && attempt_ran < limits_.healthy) return;
  row_ = 0;
  spared_ = false;
}

void RestartPolicy::count(const FirstCause& cause, Milliseconds attempt_ran, bool progressed) {
  if (limits_.forgive_after && attempt_ran >= *limits_.forgive_after) used_ = 0;
  end_row_if_healthy(attempt_ran, progressed);
  if (!came_from_outside(cause) || std::exchange(spared_, true)) ++row_;
  if (progressed || attempt_ran >= limits_.quick) {
    same_ = 0;
  } else {
    same_ = same_ > 0 && alike(cause, last_quick_) ? same_ + 1 : 1;
    last_quick_ = cause;
  }
}

// Somewhere in the upper half of what the row of failures has grown to.
Milliseconds RestartPolicy::backoff() {
  constexpr int doublings_max = 30;
  if (row_ < 2 || limits_.backoff_first.count() == 0) return Milliseconds{0};
  const Milliseconds grown = limits_.backoff_first * (1LL << std::min(row_ - 2, doublings_max));
  const Milliseconds whole = std::min(grown, limits_.backoff_max);
  const auto half = static_cast<std::uint64_t>(whole.count() / 2);
  return whole - Milliseconds{static_cast<std::int64_t>(next_random(seed_) % (half + 1))};
}

Milliseconds RestartPolicy::on_departure(Milliseconds attempt_ran, bool progressed) {
  end_row_if_healthy(attempt_ran, progressed);
  ++row_;
  return backoff();
}

RestartDecision RestartPolicy::on_failure(const FirstCause& cause, Milliseconds attempt_ran,
                                          bool progressed) {
  count(cause, attempt_ran, progressed);
  RestartDecision decision;
  const int left = limits_.restarts_max - used_;
  if (!cause.retriable) {
    decision.reason = "the job ends";
  } else if (limits_.restarts_max == 0) {
    decision.reason = "the job ends (--max-restarts 0)";
  } else if (left <= 0) {  // Below 0 where a coordinator before, of an older ddprun, had more.
    decision.reason = "no restarts are left";
  } else if (shows_a_wrong_command(cause)) {
    decision.reason = fmt::format(
        "it says that what it was given is wrong, which another attempt would be given again: the "
        "job ends with {} left",
        counted(left, "restart"));
  } else if (limits_.same_failures_max > 0 && same_ >= limits_.same_failures_max) {
    decision.reason = fmt::format(
        "the same {} times in a row, each within {} of the start, so that another attempt would "
        "not help: the job ends with {} left (--max-same-failures)",
        same_, time_text(limits_.quick), counted(left, "restart"));
  } else {
    ++used_;
    decision.restart = true;
    decision.delay = backoff();
    const std::string when = decision.delay.count() == 0 ? "" : " in " + time_text(decision.delay);
    decision.reason =
        fmt::format("restarting{} ({} of {} restarts left)", when, left - 1, limits_.restarts_max);
  }
  return decision;
}

}  // namespace ddprun::rendezvous
