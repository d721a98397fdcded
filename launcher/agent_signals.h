// The signals that reach this agent, and what each of them asks for: the end of the job, to be
// passed on to the workers, a pause, or a word on where the job stands.
#pragma once

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <functional>
#include <vector>

#include "launcher/options/launch_options.h"
#include "launcher/session.h"

namespace ddprun::launcher {

struct SignalPlan {
  std::vector<int> to_end;
  std::vector<int> to_forward;
  std::vector<int> to_tell;    // Where the job stands.
  std::vector<int> to_pause;   // Ctrl-Z: the workers, which have sessions of their own, too.
  bool watch_session = false;  // Nobody sends SIGHUP when it is lost.
};

// `is_ignored`: whether whoever started us wants the signal ignored.
SignalPlan plan_signals(const LaunchOptions& options,
                        const std::function<bool(int signal)>& is_ignored);

struct SignalCallbacks {
  std::function<void(int signal)> on_end;  // Of each one.
  std::function<void()> on_session_lost;
  std::function<void(int signal)> on_forward;
  std::function<void()> on_tell;
  std::function<void(int signal)> on_pause;
};

// Callbacks come from the io_context.
class AgentSignals {
 public:
  AgentSignals(asio::io_context& io, SignalCallbacks callbacks);

  // From here on the planned signals do what they do by default no more.
  void handle(const SignalPlan& plan);

  // The process is about to end with a status that stands: no signal changes it any more.
  void hold();

 private:
  void wait_for(asio::signal_set& set, const std::function<void(int)>& act);

  SignalCallbacks callbacks_;
  SignalPlan plan_;
  asio::signal_set to_end_;
  asio::signal_set to_forward_;
  asio::signal_set to_tell_;
  asio::signal_set to_pause_;
  Session session_;
};

// Does to this process what SIGTSTP does by default, and returns once it goes on: at once where it
// belongs to no shell that could let it.
void pause_process();

// Whether this process ignores `signal`, as nohup leaves SIGHUP.
bool signal_is_ignored(int signal);

}  // namespace ddprun::launcher
