// A call leaves the queue when it has ended, and not when it begins: an empty queue means that
// BackgroundCall, which can do but one, is free.
#include "launcher/membership/calls_in_turn.h"

#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>

namespace ddprun::launcher {

CallsInTurn::CallsInTurn(asio::io_context& io, std::string name, std::chrono::milliseconds limit)
    : call_(io, std::move(name)), limit_(limit) {}

void CallsInTurn::add(std::function<void()> work, Done done) {
  calls_.emplace_back(std::move(work), std::move(done));
  if (calls_.size() == 1) begin_first();
}

void CallsInTurn::begin_first() {
  call_.start(calls_.front().first, limit_, [this](const std::string& why) {
    const Done done = std::move(calls_.front().second);
    calls_.pop_front();
    if (!calls_.empty()) begin_first();
    done(why);
  });
}

asio::awaitable<std::string> answer_to(asio::io_context& io,
                                       std::function<void(CallsInTurn::Done)> start) {
  asio::steady_timer called(io, asio::steady_timer::time_point::max());
  std::string why;
  start([&](const std::string& what) {
    why = what;
    called.cancel();
  });
  asio::error_code cancelled;
  co_await called.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  co_return why;
}

}  // namespace ddprun::launcher
