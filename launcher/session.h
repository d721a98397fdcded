// Whether those who started this job by ssh are still there. Without a terminal nobody sends SIGHUP
// when their connection is lost: sshd closes its ends of our stdin, stdout and stderr, and goes. A
// job that writes nothing would not even notice, and hold its GPUs until its end.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>

namespace ddprun::launcher {

struct SessionFacts {
  bool output_gone = false;  // Nobody can read stdout any more, nor stderr.
  bool input_gone = false;   // Nobody can write to stdin any more, as at the start somebody could.
  bool parent_gone = false;  // Who started us has ended.
};

// Readers alone may go (`... | head`), and so may parents (`... & disown`), while somebody waits
// for the job. Both together do not.
bool session_is_lost(const SessionFacts& facts);

// Watches the descriptors 0, 1 and 2. A terminal's end is told by SIGHUP, and a file has none: with
// either as stdout or stderr the session is never lost.
class Session {
 public:
  // Calls `on_lost` once, from the io_context. Nothing is watched before.
  Session(asio::io_context& io, std::function<void()> on_lost);

  void watch();

 private:
  SessionFacts facts() const;
  void wait_for_hang_up();
  void look();

  asio::steady_timer timer_;
  asio::posix::stream_descriptor outputs_;  // Readable when stdout or stderr has hung up.
  std::function<void()> on_lost_;
  bool input_was_open_ = false;
  int parent_ = 0;
};

}  // namespace ddprun::launcher
