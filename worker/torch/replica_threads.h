// A fixed group of threads that carry out one call together: thread i calls body(i).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/owning_process.h"
#include "worker/torch/replica_meeting.h"

namespace ddprun::worker {

// For who is about to compute in several threads that share a model: MKL chooses the code of its
// vector functions (tanh, exp, sqrt, ...) at a process's first call of any of them, and of two
// threads that make it at once one may get less exact results, of a tanh 5e-5 off. Makes that call.
void settle_vector_functions();

class ReplicaThreads {
 public:
  // Each thread computes with `intra_op_threads` threads of LibTorch's; 0: with as many as by
  // default.
  ReplicaThreads(std::size_t threads, int intra_op_threads);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  // Threads 0 .. count-1 call body(their number) with the caller's thread-local settings of
  // LibTorch (gradients on or off, autocast). Returns when all have ended; rethrows the exception
  // of the lowest number, of those that are no consequence of another's. One call at a time, not
  // from within a body.
  void run(std::size_t count, const std::function<void(std::size_t)>& body);

  // Where the bodies of a call may meet.
  const std::shared_ptr<ReplicaMeeting>& meeting() const { return meeting_; }

 private:
  void serve(std::size_t index, int intra_op_threads);
  void rethrow_first() const;

  const std::shared_ptr<ReplicaMeeting> meeting_ = std::make_shared<ReplicaMeeting>();
  std::mutex mutex_;  // Protects all below but owner_ and threads_.
  std::condition_variable started_;
  std::condition_variable finished_;
  std::function<void(std::size_t)> body_;
  std::size_t count_ = 0;    // Threads that take part in the call at hand.
  std::size_t running_ = 0;  // Of them, those that have not ended.
  std::size_t call_ = 0;     // Its number.
  std::vector<std::exception_ptr> errors_;
  bool stopping_ = false;
  const OwningProcess owner_;
  std::vector<std::thread> threads_;
};

}  // namespace ddprun::worker
