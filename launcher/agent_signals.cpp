// A set for each rather than one with a table beside it: asio calls back for each set alone, and
// keeps for it what comes while nobody waits.
#include "launcher/agent_signals.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/blocked_signals.h"
#include "rendezvous/control/first_cause.h"

namespace ddprun::launcher {
namespace {

void handle_all(asio::signal_set& set, const std::vector<int>& signals) {
  for (const int signal : signals) {
    asio::error_code error;
    set.add(signal, error);
    rendezvous::unblock_signal(signal);  // Now, as one may have come before.
    if (error) {
      spdlog::warn("cannot handle {}: {}", rendezvous::signal_name(signal), error.message());
    }
  }
}

}  // namespace

bool signal_is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

SignalPlan plan_signals(const LaunchOptions& options,
                        const std::function<bool(int signal)>& is_ignored) {
  SignalPlan plan;
  for (const int signal : options.signals_to_handle) {
    if (signal == SIGHUP && is_ignored(signal)) continue;  // nohup: meant to outlive its terminal.
    if (signal == SIGHUP) plan.watch_session = !options.stay;
    plan.to_end.push_back(signal);
  }
  plan.to_forward = options.signals_to_forward;
  // SIGUSR1 asks as it asks dd(1), unless it has another meaning in this job: Slurm's
  // --signal=USR1@60 makes it the end that is near.
  const auto is_free = [&](int signal) {
    const auto is_in = [signal](const std::vector<int>& signals) {
      return std::find(signals.begin(), signals.end(), signal) != signals.end();
    };
    return !is_in(options.signals_to_handle) && !is_in(options.signals_to_forward) &&
           !is_ignored(signal);
  };
  if (is_free(SIGUSR1)) plan.to_tell = {SIGUSR1};
  if (is_free(SIGTSTP)) plan.to_pause = {SIGTSTP};
  return plan;
}

void pause_process() {
  struct sigaction by_default {};
  struct sigaction ours {};
  by_default.sa_handler = SIG_DFL;
  sigaction(SIGTSTP, &by_default, &ours);
  ::raise(SIGTSTP);
  sigaction(SIGTSTP, &ours, nullptr);
}

AgentSignals::AgentSignals(asio::io_context& io, SignalCallbacks callbacks)
    : callbacks_(std::move(callbacks)),
      to_end_(io),
      to_forward_(io),
      to_tell_(io),
      to_pause_(io),
      session_(io, [this] { callbacks_.on_session_lost(); }) {}

void AgentSignals::handle(const SignalPlan& plan) {
  plan_ = plan;
  if (plan.watch_session) session_.watch();
  handle_all(to_end_, plan.to_end);
  handle_all(to_forward_, plan.to_forward);
  handle_all(to_tell_, plan.to_tell);
  handle_all(to_pause_, plan.to_pause);
  wait_for(to_end_, callbacks_.on_end);
  wait_for(to_forward_, callbacks_.on_forward);
  wait_for(to_tell_, [this](int) { callbacks_.on_tell(); });
  wait_for(to_pause_, callbacks_.on_pause);
}

// The sets give the signals back to their defaults when they go, and who stops a job by its process
// group or twice, as Slurm and run_node.sh together do, would then kill a launcher that has said
// how the job ended: 143 in place of the 75 that asks for another turn.
void AgentSignals::hold() {
  sigset_t held;
  sigemptyset(&held);
  for (const auto* signals : {&plan_.to_end, &plan_.to_forward, &plan_.to_tell}) {
    for (const int signal : *signals) sigaddset(&held, signal);
  }
  pthread_sigmask(SIG_BLOCK, &held, nullptr);
}

void AgentSignals::wait_for(asio::signal_set& set, const std::function<void(int)>& act) {
  set.async_wait([this, &set, act](const asio::error_code& error, int signal) {
    if (error) return;
    act(signal);
    wait_for(set, act);
  });
}

}  // namespace ddprun::launcher
