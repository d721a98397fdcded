// What can be ended on all ranks at once, and keeps the first reason for it. The first, because
// what comes later is mostly a consequence: a peer that fails of our abort says so, too.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>

namespace ddprun::worker {

// For whoever catches an exception to tell of it in its words.
constexpr auto telling_time = std::chrono::milliseconds{5'000};

class Abortable {
 public:
  virtual ~Abortable() = default;
  Abortable() = default;
  Abortable(const Abortable&) = delete;
  Abortable& operator=(const Abortable&) = delete;

  // Ends blocked and later calls on every rank. Safe from any thread, also while another is inside
  // a call. Only the first abort counts.
  virtual void abort(const std::string& reason) noexcept = 0;

  // For a failure of this rank whose exception is still on its way to whoever will catch it and
  // abort in its words (declare_failure.h): keeps `reason`, of which tell_untold() makes use. Where
  // there is a thread that can, it does so `after` that time.
  virtual void abort_unless_told(const std::string& reason,
                                 std::chrono::milliseconds after = telling_time) noexcept;
  // Nobody has told what abort_unless_told() was called for: records it as what this process fails
  // of, and aborts. Does nothing where there is no such reason, or the group was aborted since.
  void tell_untold() noexcept {
    if (has_untold_.load(std::memory_order_relaxed)) tell_kept_reason();
  }

  // Not virtual: a wait asks for it again and again.
  bool aborted() const noexcept { return aborted_.load(std::memory_order_seq_cst); }
  // Of the first abort. Empty before it, and where there was no memory left to keep it.
  std::string reason() const;
  std::optional<std::string> reason_if_aborted() const {
    return aborted() ? std::optional(reason()) : std::nullopt;
  }

 protected:
  // For abort(): takes the reason, unless there is one, and then says that it is aborted, so that
  // whoever sees that finds the reason. True: this was the first.
  bool record(const std::string& reason) noexcept;

 private:
  void tell_kept_reason() noexcept;

  std::atomic<bool> aborted_{false};
  std::atomic<bool> has_untold_{false};
  mutable std::mutex mutex_;  // Guards what follows.
  std::string reason_;
  std::string untold_;
};

}  // namespace ddprun::worker
