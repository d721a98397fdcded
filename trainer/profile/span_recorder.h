// Gathers spans from all threads of this process while it is open.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "trainer/profile/trace.h"

namespace ddprun::trainer {

// Thread-safe.
class SpanRecorder {
 public:
  static constexpr std::size_t spans_max_by_default = 1'000'000;  // About 100 MB.

  explicit SpanRecorder(std::size_t spans_max = spans_max_by_default) : spans_max_(spans_max) {}

  // Nanoseconds on CLOCK_MONOTONIC.
  static std::int64_t now_ns();
  // The kernel's number of the calling thread.
  static std::int64_t this_thread();

  void open() { open_ = true; }
  void close() { open_ = false; }
  bool is_open() const { return open_; }

  // The first name that a thread is given stays.
  void name_thread(std::int64_t thread, const std::string& name);

  // Dropped when it is not open, and counted when there are too many.
  void add(TraceSpan span);

  // Hands over all spans, and adds threads and the count of dropped ones to `process`. Threads that
  // nobody named are "thread <number>"; they come last.
  std::vector<TraceSpan> take(TraceProcess& process);

 private:
  std::size_t spans_max_;
  std::atomic<bool> open_ = false;
  std::mutex mutex_;  // Protects all below.
  std::vector<TraceThread> threads_;
  std::vector<TraceSpan> spans_;
  std::size_t dropped_ = 0;
};

}  // namespace ddprun::trainer
