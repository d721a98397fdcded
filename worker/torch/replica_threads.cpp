// Threads that stay: each has its number of LibTorch threads, which a new one would set anew.
#include "worker/torch/replica_threads.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

namespace ddprun::worker {

void settle_vector_functions() {
  static const bool settled = at::ones({32}).sqrt().defined();
  static_cast<void>(settled);
}

ReplicaThreads::ReplicaThreads(std::size_t threads, int intra_op_threads) {
  at::get_num_threads();  // Fixes this thread's own number before other threads set theirs.
  settle_vector_functions();
  for (std::size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this, i, intra_op_threads] { serve(i, intra_op_threads); });
  }
}

ReplicaThreads::~ReplicaThreads() {
  if (!owner_.is_this()) {
    for (std::thread& thread : threads_) leave_to_parent(thread);
    leave_to_parent(started_);
    leave_to_parent(finished_);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReplicaThreads::run(std::size_t count, const std::function<void(std::size_t)>& body) {
  const at::ThreadLocalState settings;
  std::unique_lock lock(mutex_);
  errors_.assign(threads_.size(), nullptr);
  body_ = [&](std::size_t index) {
    const at::ThreadLocalStateGuard guard(settings);
    body(index);
  };
  count_ = running_ = count;
  meeting_->begin(count);
  ++call_;
  started_.notify_all();
  finished_.wait(lock, [this] { return running_ == 0; });
  body_ = nullptr;
  meeting_->conclude();
  rethrow_first();
}

void ReplicaThreads::rethrow_first() const {
  std::exception_ptr consequence;
  for (const std::exception_ptr& error : errors_) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const ReplicaGone&) {  // Says only that another one ended, which has the reason.
      if (!consequence) consequence = error;
    }
  }
  if (consequence) std::rethrow_exception(consequence);
}

void ReplicaThreads::serve(std::size_t index, int intra_op_threads) {
  if (intra_op_threads > 0) at::set_num_threads(intra_op_threads);
  std::unique_lock lock(mutex_);
  for (std::size_t seen = 0;;) {
    started_.wait(lock, [&] { return stopping_ || call_ != seen; });
    if (stopping_) return;
    seen = call_;
    if (index >= count_) continue;
    const std::function<void(std::size_t)>& body = body_;  // Stays until all have ended.
    lock.unlock();
    std::exception_ptr error;
    try {
      body(index);
    } catch (...) {
      error = std::current_exception();
    }
    meeting_->leave();
    lock.lock();
    errors_[index] = error;
    if (--running_ == 0) finished_.notify_all();
  }
}

}  // namespace ddprun::worker
