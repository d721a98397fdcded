// A thread for each call: calls are seconds apart, and one that hangs must not hold the next ones'.
#include "launcher/membership/background_call.h"

#include <fmt/format.h>

#include <asio/post.hpp>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "rendezvous/blocked_signals.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {

struct BackgroundCall::Shared {
  std::mutex mutex;
  BackgroundCall* owner = nullptr;  // Null when that has gone.
  bool busy = false;
  std::uint64_t number = 0;  // Of the call whose end is waited for.
};

BackgroundCall::BackgroundCall(asio::io_context& io, std::string name)
    : io_(io), name_(std::move(name)), limit_(io), shared_(std::make_shared<Shared>()) {
  shared_->owner = this;
}

BackgroundCall::~BackgroundCall() {
  const std::lock_guard lock(shared_->mutex);
  shared_->owner = nullptr;
}

void BackgroundCall::start(std::function<void()> work, std::chrono::milliseconds limit,
                           std::function<void(const std::string& why)> done) {
  done_ = std::move(done);
  std::unique_lock lock(shared_->mutex);
  // Should the one that hangs return now, it is not the one that is waited for.
  const std::uint64_t number = ++shared_->number;
  if (shared_->busy) {
    asio::post(io_, [this, shared = shared_, number] {
      if (shared->owner == nullptr || shared->number != number) return;
      finish(name_ + " still does not answer");
    });
    return;
  }
  shared_->busy = true;
  lock.unlock();
  limit_.expires_after(limit);
  limit_.async_wait([this, limit, number, shared = shared_](const asio::error_code& error) {
    if (error || shared->owner == nullptr || shared->number != number) return;
    finish(fmt::format("{} does not answer within {}", name_, rendezvous::time_text(limit)));
  });
  try {
    run(std::move(work), number);
  } catch (const std::system_error& error) {  // No thread is to be had.
    shared_->busy = false;
    asio::post(io_, [this, shared = shared_, number, why = std::string(error.what())] {
      if (shared->owner == nullptr || shared->number != number) return;
      finish(fmt::format("{} cannot be called: {}", name_, why));
    });
  }
}

void BackgroundCall::run(std::function<void()> work, std::uint64_t number) {
  const rendezvous::BlockedSignals blocked;
  std::thread([shared = shared_, number, work = std::move(work)]() mutable {
    std::string why;
    try {
      work();
    } catch (const std::exception& error) {
      why = error.what();
    }
    work = nullptr;
    const std::lock_guard held(shared->mutex);
    shared->busy = false;
    if (shared->owner == nullptr) return;
    // The loop runs this while its owner lives, or never.
    asio::post(shared->owner->io_, [shared, number, why] {
      if (shared->owner != nullptr && shared->number == number) shared->owner->finish(why);
    });
  }).detach();
}

void BackgroundCall::finish(const std::string& why) {
  limit_.cancel();
  if (const auto done = std::exchange(done_, nullptr)) done(why);
}

}  // namespace ddprun::launcher
