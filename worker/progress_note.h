// Tells the launcher how far the training is, so that it knows attempts that bring something from
// those that only fail again (rendezvous/contract/progress_key.h).
//
//   ProgressNote progress(env);
//   for (...) { train_one_step(); progress.reached(step); }   // Rank 0 alone says something.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "worker/worker_env.h"

namespace ddprun::rendezvous {
class StoreClient;
}

namespace ddprun::worker {

// For one thread at a time.
class ProgressNote {
 public:
  // At most once in this time; what a restart then does not know of is less than a second of work.
  static constexpr std::chrono::seconds pause{1};

  explicit ProgressNote(const WorkerEnv& env);
  ~ProgressNote();

  // `position` grows with the work that is kept: the step, counted from the job's first. Costs a
  // look at the clock, and now and then a message that nobody waits for. Never throws: where
  // nobody can be told, nothing is lost but a restart without a pause.
  void reached(std::int64_t position);

 private:
  void tell(std::int64_t position);

  WorkerEnv env_;
  bool wanted_;
  std::chrono::steady_clock::time_point next_{};
  std::unique_ptr<rendezvous::StoreClient> store_;
};

}  // namespace ddprun::worker
