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
// Every rank counts the same beats and hears the same results, so none is ever alone at a vote.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::trainer {

// The later, the more urgent. The numbers travel between ranks.
enum class StopReason {
  None,
  TimeUp,       // --max-time.
  Asked,        // SIGUSR1, with which schedulers announce an end.
  Terminated,   // SIGTERM.
  Interrupted,  // SIGINT: somebody at a keyboard.
};

// 75 asks whoever started the job to queue it again (EX_TEMPFAIL of BSD); ddprun and its
// job scripts understand it. 130 is what a shell makes of Ctrl-C.
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

class StopAgreement {
 public:
  static constexpr double vote_interval_s = 0.5;

  explicit StopAgreement(int world_size) : alone_(world_size == 1) {}

  // A beat is done. True: now is a vote.
  bool beat();

  // What came out of it. Anything but None: stop here.
  StopReason conclude(const StopBallot& all);

  // Within how many seconds a signal leads to a vote that all ranks take part in, with a good
  // margin. If it has not, some rank will never come.
  double patience_s() const;

 private:
  bool alone_;  // Voting costs nothing.
  std::int64_t gap_ = 1;
  std::int64_t beats_ = 0;  // Since the last vote.
  double beat_s_ = 0;       // Of the slowest rank.
};

}  // namespace ddprun::trainer
