// After which step do all ranks stop together? Each rank knows only of its own signals and time;
// what is saved must be one step of all of them, and a rank that leaves early is an error to the
// others.
//
// So the ranks vote: each says how urgently it wants to stop, and the most urgent wins. A vote is
// one all-reduce of two numbers, too much for each step of a small network. Therefore the votes say
// when the next one is: after as many beats as the slowest rank does in `vote_interval_s`.
//
//   beats of every rank   1   2 3     4 5 6 7         ...   a beat: a step, or a batch of
//   validation votes                 v   v       v               ...   gaps at most double, as
//   nothing is known
//                                                           of the pace at first
//
// A batch of validation may take a hundredth of a step: each kind of beat has its own distance and
// its own count, which stands still while beats are of the other kind.
//
// Every rank counts the same beats and hears the same results, so none is ever alone at a vote.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::trainer {

// The later, the more urgent. The numbers travel between ranks.
enum class StopReason {
  None,
  TimeUp,       // --max-time.
  Asked,        // SIGUSR1, with which schedulers announce an end.
  HungUp,       // SIGHUP: the terminal or the ssh session is lost.
  Terminated,   // SIGTERM.
  Interrupted,  // SIGINT: somebody at a keyboard.
};

// 75 asks whoever started the job to queue it again (EX_TEMPFAIL of BSD); ddprun and its
// job scripts understand it. 129 and 130 are what a shell makes of SIGHUP and Ctrl-C.
int exit_status_of(StopReason reason);

// "SIGTERM"; "--max-time".
std::string describe(StopReason reason);

// What rank 0 tells people of a stop.
struct StopFacts {
  StopReason reason = StopReason::None;
  std::int64_t step = 0;
  std::int64_t epoch = 0;  // Those done; people count from 1.
  std::string folder;      // --checkpoint-dir; "": none.
  std::string resume;      // --resume
};

// "SIGTERM: saved step 812 (epoch 3) in ck6; the same command goes on"
std::string stop_text(const StopFacts& facts);

// What one rank says. Of all ranks' ballots the greatest of each field counts.
struct StopBallot {
  StopReason reason = StopReason::None;
  double beat_s = 0;  // Seconds of a beat since the last vote, on average.
};

enum class BeatKind { Step, Validation };

class StopAgreement {
 public:
  static constexpr double vote_interval_s = 0.5;

  explicit StopAgreement(int world_size) : alone_(world_size == 1) {}

  // Of which kind beats are from now on; steps at first. At the same beat on every rank.
  // `spent_s`: of this rank, since the last call of this or of beat().
  void now(BeatKind kind, double spent_s);

  // A beat is done. Something: now is a vote, and so many seconds a beat of its kind has taken this
  // rank since the last one, on average.
  std::optional<double> beat(double spent_s);

  // What came out of it. Anything but None: stop here.
  StopReason conclude(const StopBallot& all);

  // Within how many seconds a signal leads to a vote that all ranks take part in, with a good
  // margin. If it has not, some rank will never come. One that comes at the end of a validation may
  // have to wait for a vote among the steps, and the other way round.
  double patience_s() const;

 private:
  struct Pace {
    std::int64_t gap = 1;
    double beat_s = 0;  // Of the slowest rank.
    // Since the last vote among beats of this kind, on this rank.
    std::int64_t beats = 0;
    double spent_s = 0;

    double gap_s() const { return static_cast<double>(gap) * beat_s; }
  };
  Pace& pace() { return kind_ == BeatKind::Step ? steps_ : validation_; }

  bool alone_;  // Voting costs nothing.
  BeatKind kind_ = BeatKind::Step;
  Pace steps_;
  Pace validation_;
};

}  // namespace ddprun::trainer
