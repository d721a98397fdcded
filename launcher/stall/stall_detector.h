// Whether ranks of this node stand still although their processes live, and who of them is behind.
//
//   looks at all ranks ---> Nothing --> Warn --> Report ----------------> Lost, or Spared
//                                       half     its limit is over:       once the report is there,
//                                       of it    stacks are to be taken   by what is asked for
//
// A rank stands when it says nothing new. One that is in a collective waits for others and is
// behind nobody, however long: so a node whose ranks all wait blames none of its own, and whoever
// is behind is found by the node it is on, from what that node sees alone.
//
// How long a rank may stand is learnt from all ranks of this node, for each phase by itself:
// validation may last minutes where a step lasts milliseconds. Of programs that say nothing there
// is only what the kernel counts, and a limit only where the user gives one.
//
// Who is lost without having been asked for (OnStall::Auto) must be behind for certain, by a
// limit that is no guess, and cost the others no more than a step: why_spared() has each reason
// against it. And the job must get further from one such loss to the next, so that what hangs
// again where it hung before, a file server's client, uses up no more than one restart.
//
// A program that an exception has ended may keep its process: Python waits for threads and for what
// its libraries do at the end, as JAX for all ranks. It stands, and is behind whatever it says.
//
// Time is counted from look to look, and a gap between two of them as one look: a launcher that was
// itself halted, or a machine that slept, makes nobody late.
// A core: no sockets, threads or clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/options/on_stall.h"

namespace ddprun::launcher {

struct StallLimits {
  std::optional<std::chrono::milliseconds> timeout;  // As the user says; unset: learnt.
  std::chrono::milliseconds least{60'000};           // Learnt: at least this, ...
  int times = 5;  // ... and this many times the longest that a rank was in that phase.
  std::chrono::milliseconds unknown{600'000};  // Learnt, while no rank has ever left the phase.
  std::chrono::milliseconds look{1'000};       // Between two looks.
  OnStall on_stall = OnStall::Report;
  int passes = 10;  // Auto: so often must one rank have been seen to leave that phase.
};

// One rank of this node whose worker runs, as it is now.
struct RankLook {
  int rank = 0;
  std::int64_t said = 0;  // Another one each time that the rank says anything; 0: nothing yet.
  std::int64_t step = -1;
  bool done = false;  // With the last step: what follows is its end, and was never seen before.
  std::string phase;
  bool waits = false;            // In a collective, for others; ...
  std::int64_t waits_since = 0;  // ... another one for each wait, where that is known.
  char state = 'R';              // As the kernel says: T is halted, t is held by a debugger.
  std::int64_t used_ms = 0;      // Processor time of all its processes.
  std::int64_t written = 0;      // Bytes that they have written.
  bool can_park = false;         // It can leave the attempt and keep its process.
  std::string raised = {};       // The exception whose traceback it wrote last.
  bool uncaught = false;         // For certain: it has ended the program, though not the process.
};

// What the stacks say that were taken for a report.
struct StackFacts {
  std::set<int> in_collective;  // Ranks that wait for others, which Python says nowhere else.
  std::set<int> in_kernel;      // Ranks with a thread that waits uninterruptibly, for a disk, say.
};

struct StallStep {
  enum class Kind { Nothing, Warn, Report, Lost, Spared };
  Kind kind = Kind::Nothing;
  // Warn, Report: who is behind; empty: nobody knows. Lost: who is to be killed. Spared: who is
  // not, though it may be later on, and `reason` is why.
  std::vector<int> behind;
  std::chrono::milliseconds stood{0};  // The first of them, or of all that stand.
  std::string reason;                  // Never empty.
};

class StallDetector {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit StallDetector(StallLimits limits) : limits_(limits) {}

  // Another attempt; what was learnt of phases stays. `all_ranks_here`: no other node has any.
  // `restart_left`: another one follows if a worker of this one fails.
  void attempt_started(bool all_ranks_here, bool restart_left = false);
  StallStep look(const std::vector<RankLook>& ranks, TimePoint now);
  // The stacks that were to be taken after Report.
  void reported(StackFacts facts);

  // How long this rank may stand now.
  std::chrono::milliseconds limit_of(const RankLook& rank) const;

 private:
  using Milliseconds = std::chrono::milliseconds;
  struct Seen {
    RankLook last;
    Milliseconds since{0};        // On the detector's clock: when it last said something new.
    std::int64_t used_since = 0;  // Processor time then.
    bool warned = false;
  };
  struct Learnt {
    Milliseconds longest{0};   // In a phase that was left.
    Milliseconds left_at{0};   // The last time, on the detector's clock.
    std::map<int, int> times;  // That it was seen to be, by rank.
  };
  struct Sorted {
    std::vector<const Seen*> halted, standing, waiting, moving;
  };

  void count(TimePoint now);
  void note(const RankLook& rank);
  bool has_moved(const Seen& before, const RankLook& now) const;
  bool is_idle(const Seen& before, const RankLook& now) const;
  void learn(const Seen& before);
  void forget_a_phase();
  Milliseconds stood(const Seen& rank) const { return clock_ - rank.since; }
  bool stands(const Seen& rank) const;
  Sorted sorted() const;
  StallStep judge(const Sorted& ranks);
  StallStep warn(const Sorted& ranks);
  StallStep lose(const Sorted& ranks, StallStep found);
  StallStep lose_where_cheap(const Sorted& ranks, StallStep found);
  std::string why_spared(const Sorted& ranks, const std::vector<const Seen*>& blamed) const;
  std::string why_in_doubt(const Sorted& ranks, const std::vector<const Seen*>& blamed) const;
  std::string why_no_guess(const Seen& rank) const;
  int passes_of(const RankLook& rank) const;
  bool is_stall(const Sorted& ranks) const;
  std::string describe(const Sorted& ranks, const std::vector<const Seen*>& blamed) const;
  std::string waiting_text(const Sorted& ranks) const;
  static std::vector<int> numbers(const std::vector<const Seen*>& ranks);
  std::vector<const Seen*> behind(const Sorted& ranks) const;
  static std::vector<const Seen*> those_that_raised(const Sorted& ranks, bool for_certain);
  bool all_wait_for_each_other(const Sorted& ranks) const;

  StallLimits limits_;
  bool all_ranks_here_ = true;
  bool restart_left_ = false;
  Milliseconds clock_{0};
  std::optional<TimePoint> last_look_;
  std::map<int, Seen> seen_;              // By rank.
  std::map<std::string, Learnt> learnt_;  // By phase: the latest phases_max.
  // Of this stall.
  enum class Told { Nothing, Asked, Reported, Spared, Lost } told_ = Told::Nothing;
  StackFacts facts_;
  std::optional<std::int64_t> lost_at_step_;  // The last one that was lost unasked.
};

}  // namespace ddprun::launcher
