// The distance between votes, and what their results mean; the all-reduce is stop_vote.cpp's.
#include "trainer/stopping/stop_agreement.h"

#include <algorithm>

namespace ddprun::trainer {
namespace {

// Bounds what a rank can wait for when steps get slower than they were at the last vote.
constexpr std::int64_t gap_max = 1000;

// A rank may be late for a vote by a checkpoint that is copied, or a batch that is read from a slow
// disk. A launcher's grace period is 30 s (ddprun, torchrun): the rest of it must do for the end.
constexpr double patience_base_s = 10;
constexpr double patience_gaps = 4;

}  // namespace

int exit_status_of(StopReason reason) {
  constexpr int queue_again = 75;
  constexpr int hung_up = 129;
  constexpr int interrupted = 130;
  switch (reason) {
    case StopReason::None:
      return 0;
    case StopReason::TimeUp:
    case StopReason::Asked:
    case StopReason::Terminated:
      return queue_again;
    case StopReason::HungUp:
      return hung_up;
    case StopReason::Interrupted:
      return interrupted;
  }
  return 0;
}

std::string describe(StopReason reason) {
  switch (reason) {
    case StopReason::None:
      return "";
    case StopReason::TimeUp:
      return "--max-time";
    case StopReason::Asked:
      return "SIGUSR1";
    case StopReason::HungUp:
      return "SIGHUP";
    case StopReason::Terminated:
      return "SIGTERM";
    case StopReason::Interrupted:
      return "SIGINT";
  }
  return "";
}

std::string stop_text(const StopFacts& facts) {
  const std::string position =
      "step " + std::to_string(facts.step) + " (epoch " + std::to_string(facts.epoch + 1) + ")";
  if (facts.folder.empty()) {
    return describe(facts.reason) + ": stopped after " + position +
           "; nothing is kept: give --checkpoint-dir DIR to go on from there";
  }
  return describe(facts.reason) + ": saved " + position + " in " + facts.folder +
         "; the same command " +
         (facts.resume == "auto" ? "goes on" : "with --resume auto goes on");
}

void StopAgreement::now(BeatKind kind, double spent_s) {
  pace().spent_s += spent_s;
  kind_ = kind;
}

std::optional<double> StopAgreement::beat(double spent_s) {
  pace().spent_s += spent_s;
  pace().beats += 1;
  if (pace().beats < pace().gap) return std::nullopt;
  const double beat_s = pace().spent_s / static_cast<double>(pace().beats);
  pace().beats = 0;
  pace().spent_s = 0;
  return beat_s;
}

StopReason StopAgreement::conclude(const StopBallot& all) {
  pace().beat_s = all.beat_s;
  if (alone_) return all.reason;
  // The comparison is false for a pace of 0, or none: the gap then doubles.
  const double wanted = vote_interval_s / all.beat_s;
  const std::int64_t doubled = std::min(2 * pace().gap, gap_max);
  pace().gap = wanted < static_cast<double>(doubled)
                   ? std::max<std::int64_t>(1, static_cast<std::int64_t>(wanted))
                   : doubled;
  return all.reason;
}

double StopAgreement::patience_s() const {
  return patience_base_s + patience_gaps * (steps_.gap_s() + validation_.gap_s());
}

}  // namespace ddprun::trainer
