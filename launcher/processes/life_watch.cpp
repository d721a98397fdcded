// The kernel wakes a waiter of a dead holder's word only where the word says that there is one, so
// each look at a held word says so in it.
#include "launcher/processes/life_watch.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <ctime>
#include <system_error>
#include <utility>

#include "rendezvous/blocked_signals.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449  // On every architecture; Linux 5.16.
#endif

namespace ddprun::launcher {
namespace {

// linux/futex.h has them from 5.16 on.
constexpr std::size_t words_max = 128;
constexpr std::uint32_t futex_of_32_bits = 2;
struct WaitedWord {
  std::uint64_t value;
  std::uint64_t address;
  std::uint32_t flags;
  std::uint32_t reserved;
};

WaitedWord waited(const void* address, std::uint32_t value, std::uint32_t flags) {
  return {value, reinterpret_cast<std::uint64_t>(address), flags | futex_of_32_bits, 0};
}

// What stands in the word now; if somebody holds it, also that it is waited for.
std::uint32_t look_at(std::uint32_t& word) {
  const std::atomic_ref value(word);
  std::uint32_t seen = value.load(std::memory_order_acquire);
  while ((seen & FUTEX_TID_MASK) != 0 && (seen & (FUTEX_OWNER_DIED | FUTEX_WAITERS)) == 0) {
    if (value.compare_exchange_weak(seen, seen | FUTEX_WAITERS)) return seen | FUTEX_WAITERS;
  }
  return seen;
}

}  // namespace

LifeWatch::LifeWatch(std::vector<std::uint32_t*> words, OnEnding on_ending)
    : words_(std::move(words)), on_ending_(std::move(on_ending)) {
  if (words_.size() >= words_max) words_.resize(words_max - 1);  // One is `ended_`.
  holders_.resize(words_.size());
  if (words_.empty()) return;
  const rendezvous::BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {  // Which does not say what could not be had.
    const bool limited = error.code() == std::errc::resource_unavailable_try_again;
    throw std::system_error(error.code(), limited ? "cannot start a thread (ulimit -u, ulimit -d)"
                                                  : "cannot start a thread");
  }
}

LifeWatch::~LifeWatch() {
  if (!thread_.joinable()) return;
  ended_ = 1;
  ::syscall(SYS_futex, &ended_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  thread_.join();
}

void LifeWatch::run() {
  std::vector<WaitedWord> waits(words_.size() + 1);
  while (ended_ == 0) {
    waits.back() = waited(&ended_, 0, FUTEX_PRIVATE_FLAG);
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::uint32_t seen = look_at(*words_[i]);
      const bool dead = (seen & FUTEX_OWNER_DIED) != 0;
      const std::uint32_t holder = dead ? 0 : seen & FUTEX_TID_MASK;
      if (holders_[i] != 0 && holders_[i] != holder) on_ending_(static_cast<int>(holders_[i]));
      holders_[i] = holder;
      waits[i] = waited(words_[i], seen, 0);
    }
    // A word that has changed since is not waited for, but looked at again.
    const long woken =
        ::syscall(SYS_futex_waitv, waits.data(), waits.size(), 0, nullptr, CLOCK_MONOTONIC);
    if (woken < 0 && errno != EAGAIN && errno != EINTR) return;
  }
}

}  // namespace ddprun::launcher
