// What the consoles have not taken yet when the job is over: `ddprun ... | less` reads the last of
// it whenever somebody presses a key, and a terminal stopped by Ctrl-S when it is let go.
//
// A reader that is alive gets everything, however slow, and so does a file whose disk or server
// takes a pause. A reader that is gone (EPIPE) ends the wait at once; whoever wants an end says so
// by a signal, and is told what was dropped.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "launcher/output/forwarder.h"

namespace ddprun::launcher {

// Whether the signals that the launcher has got since its start say that nobody waits for the rest
// of the output.
bool end_patience(const std::vector<int>& signals);

struct LastOutputLimits {
  // After this stderr says what is being waited for, when it is another console than stdout.
  std::chrono::milliseconds notice_after{2'000};
  // How long the readers have once patience has ended. Short of the time that schedulers leave
  // between SIGTERM and SIGKILL, which the workers may have used up already.
  std::chrono::milliseconds impatient{2'000};
};

class LastOutput {
 public:
  // `output` must outlive it.
  LastOutput(asio::io_context& io, OutputForwarder& output, LastOutputLimits limits = {});

  // Every signal that means the job, from the launcher's start on.
  void signal_received(int signal);

  // Calls `done` from the io_context when consoles and files have taken everything, nobody reads it
  // any more, or it was dropped. `log_folder`: where files hold the same; "" = nowhere. `dropped`
  // hears before that how many bytes were: a console that is stuck cannot say so, and there need
  // not be a terminal.
  void wait(std::string log_folder, std::function<void()> done,
            std::function<void(std::size_t)> dropped = {});

 private:
  void notice();
  void bound();
  void give_up();
  void finish();

  OutputForwarder& output_;
  LastOutputLimits limits_;
  asio::steady_timer notice_timer_;
  asio::steady_timer limit_timer_;
  std::vector<int> signals_;
  std::string log_folder_;
  std::function<void()> done_;  // Set while waiting.
  std::function<void(std::size_t)> dropped_;
};

}  // namespace ddprun::launcher
