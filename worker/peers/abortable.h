// What can be ended on all ranks at once, and keeps the first reason for it. The first, because
// what comes later is mostly a consequence: a peer that fails of our abort says so, too.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

namespace ddprun::worker {

class Abortable {
 public:
  virtual ~Abortable() = default;
  Abortable() = default;
  Abortable(const Abortable&) = delete;
  Abortable& operator=(const Abortable&) = delete;

  // Ends blocked and later calls on every rank. Safe from any thread, also while another is inside
  // a call. Only the first abort counts.
  virtual void abort(const std::string& reason) noexcept = 0;

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
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;  // Guards reason_.
  std::string reason_;
};

}  // namespace ddprun::worker
