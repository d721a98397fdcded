// A meeting is over when all have taken the result, and not before does the next one begin: a fast
// replica would else bring its next tensor to those who have not left this one.
#include "worker/torch/replica_meeting.h"

#include <string>

namespace ddprun::worker {

void ReplicaMeeting::begin(std::size_t parties) {
  const std::lock_guard lock(mutex_);
  parties_ = parties;
  left_ = false;
  // What a call that failed has left behind.
  brought_.clear();
  arrived_ = to_take_ = 0;
  result_ = at::Tensor();
}

void ReplicaMeeting::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

void ReplicaMeeting::conclude() {
  const std::lock_guard lock(mutex_);
  left_ = false;
}

std::size_t ReplicaMeeting::parties() const {
  const std::lock_guard lock(mutex_);
  return parties_;
}

template <class Condition>
void ReplicaMeeting::wait(Lock& lock, const char* what, Condition condition) {
  const bool in_time = changed_.wait_for(lock, limit_, [&] { return condition() || left_; });
  if (condition()) return;
  throw ReplicaGone(in_time ? std::string("a replica ended while another waited for ") + what
                            : std::string("a replica waited for ") + what + " for " +
                                  std::to_string(limit_.count() / 1000) + " s");
}

at::Tensor ReplicaMeeting::meet(std::size_t replica, std::size_t parties, const at::Tensor& mine,
                                const Combine& combine) {
  Lock lock(mutex_);
  wait(lock, "those of the meeting before", [this] { return to_take_ == 0; });
  brought_.resize(parties);
  brought_.at(replica) = mine;
  ++arrived_;
  changed_.notify_all();
  if (replica == 0) {
    wait(lock, "the others", [&] { return arrived_ == parties; });
    combine_all(lock, combine);
    to_take_ = parties;
    arrived_ = 0;
    changed_.notify_all();
  } else {
    wait(lock, "replica 0", [this] { return to_take_ > 0; });
  }
  const at::Tensor result = result_;
  if (--to_take_ == 0) {
    result_ = at::Tensor();
    brought_.clear();
    changed_.notify_all();
  }
  return result;
}

// Unlocked while it computes: the others must be able to leave, should they fail. Where it throws
// the others are told here: in a backward on GPUs replica 0's thread is autograd's, which does not
// say that it leaves, and waits for theirs.
void ReplicaMeeting::combine_all(Lock& lock, const Combine& combine) {
  const std::vector<at::Tensor> all = brought_;
  lock.unlock();
  try {
    at::Tensor result = combine(all);
    lock.lock();
    result_ = std::move(result);
  } catch (...) {
    leave();
    throw;
  }
}

}  // namespace ddprun::worker
