// How a cause becomes an exit status and a line: in one place, because every node prints it and a
// script compares them.
#include "rendezvous/control/first_cause.h"

#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstddef>

#include "rendezvous/time_text.h"

namespace ddprun::rendezvous {

int exit_status_of(const FirstCause& cause) {
  switch (cause.kind) {
    case FirstCause::Kind::WorkerFailed:
    case FirstCause::Kind::StartFailed:
      if (cause.signal != 0) return 128 + cause.signal;
      return cause.exit_code != 0 ? cause.exit_code : exit_status::internal;
    case FirstCause::Kind::NodeLost:
      return exit_status::node_lost;
    case FirstCause::Kind::Interrupted:
      return cause.signal == SIGTERM ? exit_status::preempted : 128 + cause.signal;
  }
  return exit_status::internal;
}

bool is_of_unfit_node(const FirstCause& cause) {
  return cause.kind == FirstCause::Kind::Interrupted && !cause.message.empty();
}

bool asks_to_be_queued_again(const FirstCause& cause) {
  return cause.kind == FirstCause::Kind::WorkerFailed && cause.signal == 0 &&
         cause.exit_code == exit_status::preempted;
}

std::string advice_on_early_end(std::string_view who) {
  return fmt::format(
      "{} had ended with exit code 0, as if all were done, while this worker still needed a peer: "
      "look why (fewer batches than the others? a return or an exit(0) on some path?)",
      who);
}

std::string advice_on_lost_node(bool restarts) {
  std::string advice =
      "look at that node: the last lines of its launcher, its kernel's log (dmesg -T: memory that "
      "ran out, a reboot), and whether it answers at all (ping); `ddprun doctor -H HOSTS` tries "
      "the network between the hosts";
  if (!restarts) {
    advice +=
        "; with --max-restarts the job begins again once that node is back, or, where --nnodes "
        "MIN:MAX allows it, without it";
  }
  return advice;
}

std::string signal_name(int signal) {
  // Linux's numbers on x86-64 and ARM, from 1. sigabbrev_np would have them, but only from glibc
  // 2.32 on, and packages of ddprun run with 2.28.
  static constexpr std::array names = {
      "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1", "SEGV",
      "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN", "TTOU",
      "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS"};
  if (signal < 1 || signal > static_cast<int>(names.size())) {
    return fmt::format("signal {}", signal);
  }
  return fmt::format("SIG{}", names[static_cast<std::size_t>(signal) - 1]);
}

namespace {

std::string where(const FirstCause& cause) {
  std::string text = cause.rank >= 0 ? fmt::format("rank {}", cause.rank) : "the launcher";
  text += cause.pid > 0 ? fmt::format(" (pid {} on {})", cause.pid, cause.host)
                        : fmt::format(" on {}", cause.host);
  return text;
}

// "node 1 (host-b)", or "node host-b" where it was in no round, as one that stood by.
std::string node_of(const FirstCause& cause) {
  if (cause.node_rank < 0) return "node " + cause.host;
  return fmt::format("node {} ({})", cause.node_rank, cause.host);
}

}  // namespace

std::string describe(const FirstCause& cause) {
  switch (cause.kind) {
    case FirstCause::Kind::WorkerFailed:
      if (cause.halted)
        return fmt::format("{} was halted by a signal, as was seen after {}; ended first: {}",
                           where(cause), time_text(std::chrono::milliseconds(cause.ran_ms)),
                           cause.ended_first);
      if (!cause.ended_first.empty())
        return fmt::format("{} recorded an error after {}; ended first: {}", where(cause),
                           time_text(std::chrono::milliseconds(cause.ran_ms)), cause.ended_first);
      if (cause.hung_ms > 0)
        return fmt::format("{} stood still for {}, and was killed after {}", where(cause),
                           time_text(std::chrono::milliseconds(cause.hung_ms)),
                           time_text(std::chrono::milliseconds(cause.ran_ms)));
      if (cause.signal != 0)
        return fmt::format("{} was killed by {}{} after {}", where(cause),
                           signal_name(cause.signal), cause.oom_killed ? " (out of memory)" : "",
                           time_text(std::chrono::milliseconds(cause.ran_ms)));
      if (asks_to_be_queued_again(cause))
        return fmt::format("{} stopped after {} and asks to be queued again (exit code {})",
                           where(cause), time_text(std::chrono::milliseconds(cause.ran_ms)),
                           cause.exit_code);
      return fmt::format("{} ended with exit code {}{} after {}", where(cause), cause.exit_code,
                         cause.oom_killed ? " (out of memory)" : "",
                         time_text(std::chrono::milliseconds(cause.ran_ms)));
    case FirstCause::Kind::StartFailed:
      return fmt::format("{} could not start its workers: {}", where(cause), cause.message);
    case FirstCause::Kind::NodeLost:
      return fmt::format("{} was lost: {}", node_of(cause), cause.message);
    case FirstCause::Kind::Interrupted:
      if (is_of_unfit_node(cause)) {
        return fmt::format("{} is not fit for the job: {}", node_of(cause), cause.message);
      }
      if (cause.starter_gone) {
        return fmt::format("{} lost the session that had started it", node_of(cause));
      }
      return fmt::format("{} got {}", where(cause), signal_name(cause.signal));
  }
  return "unknown cause";
}

}  // namespace ddprun::rendezvous
