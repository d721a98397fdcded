// Results of numbered jobs: made ahead by threads, taken in order.
//
//   threads:  claim job k -> make it -> slot k % slots        next(): slot 0, slot 1, ...
//
// A job may be begun once the last result of its slot was taken, so the slots bound the memory.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace ddprun::trainer {

// Used by one thread, apart from those of its own.
template <typename Result>
class Prefetch {
 public:
  static constexpr std::size_t slots_per_thread = 2;

  using Maker = std::function<Result(std::int64_t job)>;

  // Each thread calls `make_maker` before its first job, and what that returns for each job. What
  // either throws is thrown by the next() that would return the job. At least one thread.
  Prefetch(std::int64_t jobs, int threads, std::function<Maker()> make_maker)
      : jobs_(jobs),
        make_maker_(std::move(make_maker)),
        slots_(slots_per_thread * static_cast<std::size_t>(threads)) {
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
    } catch (...) {  // There are no more threads to be had.
      stop();
      throw;
    }
  }
  ~Prefetch() { stop(); }  // Results that nobody took are dropped.
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // The next result; at most `jobs` times.
  Result next() {
    Slot slot;
    {
      std::unique_lock lock(mutex_);
      Slot& wanted = slot_of(taken_);
      filled_.wait(lock, [&] { return wanted.result || wanted.error; });
      slot = std::exchange(wanted, Slot{});
      ++taken_;
    }
    freed_.notify_all();
    if (slot.error) std::rethrow_exception(slot.error);
    return std::move(*slot.result);
  }

 private:
  struct Slot {
    std::optional<Result> result;
    std::exception_ptr error;
  };

  Slot& slot_of(std::int64_t job) { return slots_[static_cast<std::size_t>(job) % slots_.size()]; }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    freed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run() {
    Maker maker;
    std::unique_lock lock(mutex_);
    for (;;) {
      freed_.wait(lock, [&] {
        return stopping_ || claimed_ == jobs_ ||
               claimed_ < taken_ + static_cast<std::int64_t>(slots_.size());
      });
      if (stopping_ || claimed_ == jobs_) return;
      const std::int64_t job = claimed_++;
      lock.unlock();
      Slot slot;
      try {
        if (!maker) maker = make_maker_();
        slot.result = maker(job);
      } catch (...) {
        slot.error = std::current_exception();
      }
      lock.lock();
      slot_of(job) = std::move(slot);
      filled_.notify_one();
    }
  }

  const std::int64_t jobs_;
  const std::function<Maker()> make_maker_;

  // Protected by mutex_.
  std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable freed_;
  std::vector<Slot> slots_;
  std::int64_t claimed_ = 0;  // Jobs that a thread has begun.
  std::int64_t taken_ = 0;    // Results that next() has returned.
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace ddprun::trainer
