// Calls into what may not answer, a file server or etcd, one after the other: what a node asks must
// not overtake what it has said.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "launcher/membership/background_call.h"

namespace ddprun::launcher {

class CallsInTurn {
 public:
  using Done = std::function<void(const std::string& why)>;  // "": all is well.

  // `io` must outlive it. `name`: of who is called, for messages. `limit`: of one call.
  CallsInTurn(asio::io_context& io, std::string name, std::chrono::milliseconds limit);

  // `work` and `done` as BackgroundCall::start() has them. The next call is under way when `done`
  // is called, which may add others, or end this object.
  void add(std::function<void()> work, Done done);

 private:
  void begin_first();

  BackgroundCall call_;
  std::chrono::milliseconds limit_;
  // The first one is under way.
  std::deque<std::pair<std::function<void()>, Done>> calls_;
};

// What `start`, which is given it to be called once, and not before it returns, was told.
asio::awaitable<std::string> answer_to(asio::io_context& io,
                                       std::function<void(CallsInTurn::Done)> start);

}  // namespace ddprun::launcher
