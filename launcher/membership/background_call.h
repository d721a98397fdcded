// One call at a time that may block for ever, such as into a file system whose server is away, made
// in a thread of its own and bounded by a limit.
//
// Who is blocked in the kernel cannot be stopped: after the limit the call counts as failed, and
// until it returns no other one is made. Its thread holds nothing of its caller, which may end
// meanwhile.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace ddprun::launcher {

class BackgroundCall {
 public:
  // `io` must outlive it. `name`: of who is called, for messages.
  BackgroundCall(asio::io_context& io, std::string name);
  ~BackgroundCall();  // Nothing of what was called comes back after it.

  // Calls `work`, which owns all that it uses, and then, from the event loop, `done` with "" or
  // what `work` threw; "NAME does not answer ..." after `limit`, or at once while an earlier one
  // hangs. Only when no `done` is due.
  void start(std::function<void()> work, std::chrono::milliseconds limit,
             std::function<void(const std::string& why)> done);

 private:
  struct Shared;

  void run(std::function<void()> work, std::uint64_t number);
  void finish(const std::string& why);

  asio::io_context& io_;
  std::string name_;
  asio::steady_timer limit_;
  std::shared_ptr<Shared> shared_;
  std::function<void(const std::string& why)> done_;
};

}  // namespace ddprun::launcher
