// The only state that all threads share while tracing: a bounded list behind a lock.
#include "trainer/profile/span_recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace ddprun::trainer {
namespace {

bool holds(const std::vector<TraceThread>& threads, std::int64_t id) {
  return std::any_of(threads.begin(), threads.end(),
                     [&](const TraceThread& thread) { return thread.id == id; });
}

}  // namespace

std::int64_t SpanRecorder::now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::int64_t SpanRecorder::this_thread() {
  thread_local const std::int64_t id = ::gettid();
  return id;
}

void SpanRecorder::name_thread(std::int64_t thread, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (!holds(threads_, thread)) threads_.push_back({thread, name});
}

void SpanRecorder::add(TraceSpan span) {
  if (!open_) return;
  const std::lock_guard lock(mutex_);
  if (spans_.size() < spans_max_) {
    spans_.push_back(std::move(span));
  } else {
    dropped_ += 1;
  }
}

std::vector<TraceSpan> SpanRecorder::take(TraceProcess& process) {
  const std::lock_guard lock(mutex_);
  process.threads = threads_;
  for (const TraceSpan& span : spans_) {
    if (!holds(process.threads, span.thread)) {
      process.threads.push_back({span.thread, fmt::format("thread {}", span.thread)});
    }
  }
  process.dropped_spans = std::exchange(dropped_, 0);
  return std::exchange(spans_, {});
}

}  // namespace ddprun::trainer
