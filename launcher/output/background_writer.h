// Text on its way to where write(2) may hang: a file whose server is away or whose disk is frozen,
// a terminal that cannot be opened anew. A thread of its own writes it, so that the loop goes on,
// and with it the heartbeats of this node.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "command_line/write_call.h"

namespace ddprun::launcher {

// Everything in order. Takes whatever it is given: callers ask congested() and hold back, or what
// is queued has no bound. For the thread of `io`, except for what `write` does.
//
// Who hangs in the kernel cannot be stopped. So the thread holds nothing of its owner, nobody joins
// it, and the process may end while it hangs.
class BackgroundWriter {
 public:
  static constexpr std::size_t congested_bytes = 1 << 20;
  static constexpr std::size_t relieved_bytes = 256 << 10;

  // Called from `io`, perhaps once more after this has gone.
  struct Events {
    std::function<void()> on_relieved;         // It was congested, and has caught up.
    std::function<void(int error)> on_failed;  // An errno. Nothing is written from then on.
    // The same, but these bytes alone counted as taken, and what follows is written.
    std::function<void(int error)> on_refused;
  };

  // `write` may take bytes with an error: on_refused tells of it. It is called in the thread, which
  // begins with the first text, and is destroyed there: with it goes the file, whose close() may
  // hang as well. `io` must outlive this.
  BackgroundWriter(asio::io_context& io, command_line::WriteCall write, Events events = {});
  ~BackgroundWriter();  // end()
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  void add(std::string_view text);
  // Leaves `text` empty, with room for more.
  void take(std::string& text);

  // No more comes. What is queued is still written, and the file closed then.
  void end();
  bool has_ended() const;  // end() was called, and nothing is pending.

  std::size_t pending_bytes() const;
  bool congested() const { return pending_bytes() >= congested_bytes; }

  // Calls `handler` from `io`, once, when nothing is pending any more; for one who asks at a time.
  void when_written(std::function<void()> handler);
  // Waits for that, for as long as some is taken at least every `stuck_limit`.
  bool wait(std::chrono::milliseconds stuck_limit);
  // Gives up what is pending; returns how many bytes that was. Of the last that `write` was given,
  // some may still arrive.
  std::size_t drop();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ddprun::launcher
