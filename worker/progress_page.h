// Tells who watches the job where this rank is (ddprun status, top): step, phase, how long it waits
// for data and for others.
//
//   ProgressPage& page = ProgressPage::own();
//   page.phase("data");
//   page.step_done({.step = 12, .images = 256, .step_s = 0.1, .data_s = 0.01});
//
// Programs on DistributedDataParallel that say nothing themselves are spoken for: it counts the
// reductions, and says when one is waited for.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/contract/progress_page.h"

namespace ddprun::worker {

// What one step was, for step_done().
struct StepFacts {
  std::int64_t step = -1;  // That is done, counted from the job's first as 1; -1: not known.
  std::int64_t total_steps = -1;
  std::int64_t epoch = -1;  // From 1.
  std::int64_t images = 0;  // Of this rank.
  double step_s = 0;
  double data_s = 0;           // Of it, waiting for data ...
  double wait_s = 0;           // ... and for other ranks.
  std::optional<double> loss;  // Not known: the last one stays.
};

// For one thread at a time. Nothing here makes a system call, or fails.
class ProgressPage {
 public:
  // That of this process, which its launcher has given it; without one all calls do nothing.
  static ProgressPage& own();

  ProgressPage() = default;
  // `memory`: at least a ProgressPageLayout, for as long as this lives.
  explicit ProgressPage(void* memory);
  ProgressPage(const ProgressPage&) = delete;

  bool is_there() const { return page_ != nullptr; }

  // For own(), in a process that has got its rank of another attempt, in the environment: the
  // launcher looks for it at its local rank's place, which may be another one now. Stacks are
  // answered for there, too. No other thread may call, or read the environment, meanwhile.
  void follow_rank();

  // What this rank does from now on, in a word or two (31 bytes are kept).
  void phase(std::string_view name);
  void step_done(const StepFacts& step);

  // For the library, in the name of programs that call neither of the above.
  void computes();                                // Forward begins.
  void waits();                                   // For the others' gradients ...
  void reduced(std::chrono::nanoseconds waited);  // ... which came after so long, since the last.

 private:
  friend class WaitForOthers;
  void set_phase(std::string_view name);
  void set_step(const StepFacts& step);
  void publish();

  rendezvous::ProgressPageLayout* page_ = nullptr;
  rendezvous::ProgressPageLayout now_{};  // What is published next.
  bool tells_phases_ = false;             // The program itself ...
  bool tells_steps_ = false;
  std::string phase_before_;  // The wait.
  std::int64_t reductions_ = 0;
  std::optional<std::chrono::steady_clock::time_point> last_reduced_;
  double images_per_step_ = 0;
};

// For the library: while it lives this rank stands in a collective, or in a meeting, until others
// come to it, so that nobody takes it for the one that is behind. On any thread; of several at once
// the first counts.
class WaitForOthers {
 public:
  explicit WaitForOthers(ProgressPage& page = ProgressPage::own());
  ~WaitForOthers();
  WaitForOthers(const WaitForOthers&) = delete;

 private:
  std::int64_t* since_ = nullptr;  // In the page; null: another one tells of the wait.
};

}  // namespace ddprun::worker
