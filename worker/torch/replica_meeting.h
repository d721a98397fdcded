// Where the replicas of one worker meet in the middle of a forward or backward: each brings a
// tensor, replica 0 makes one of all, each takes it along. For what must be computed over the whole
// batch, as the statistics of SyncBatchNorm.
//
//   replica 0   ---- mine --+           +-- result ---->
//   replica 1   ---- mine --+-- combine-+-- result ---->
//                             (replica 0)
//
// Replica 0 and not whoever comes last, because what it calls (a collective between workers) must
// have one order in every worker, and on GPUs the stream of the first device.
//
// Threads: each replica has one of its own. All meet in the same order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "worker/torch/libtorch.h"

namespace ddprun::worker {

// Thrown in replicas that wait for one that will not come. Why is said by that one's own exception.
class ReplicaGone : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ReplicaMeeting {
 public:
  using Combine = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

  // `limit`: of one wait for the others.
  explicit ReplicaMeeting(std::chrono::milliseconds limit = std::chrono::minutes(10))
      : limit_(limit) {}

  // Replicas 0 .. parties-1 begin to compute, in threads that tell when they leave. No replica is
  // under way.
  void begin(std::size_t parties);
  // A replica has ended, well or not: whoever waits for it throws ReplicaGone.
  void leave();
  void conclude();  // All have.

  // How many began with the latest begin(). A backward may run after the next forward began: it
  // must remember the number of its own.
  std::size_t parties() const;

  // What `combine`, called in replica 0's thread, returned for the tensors of `parties` replicas,
  // in their order. Throws ReplicaGone, also when combine threw in replica 0; there its exception.
  at::Tensor meet(std::size_t replica, std::size_t parties, const at::Tensor& mine,
                  const Combine& combine);

 private:
  using Lock = std::unique_lock<std::mutex>;
  template <class Condition>
  void wait(Lock& lock, const char* what, Condition condition);
  void combine_all(Lock& lock, const Combine& combine);

  const std::chrono::milliseconds limit_;
  mutable std::mutex mutex_;  // Protects all below.
  std::condition_variable changed_;
  std::size_t parties_ = 0;
  bool left_ = false;                // Somebody has ended since begin().
  std::vector<at::Tensor> brought_;  // To the meeting at hand, by replica.
  std::size_t arrived_ = 0;
  at::Tensor result_;
  std::size_t to_take_ = 0;  // Those who have not taken the result yet.
};

}  // namespace ddprun::worker
