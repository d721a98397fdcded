// One function an event, one line an arrow; what has no arrow is late news and changes nothing.
#include "launcher/agent_state.h"

#include <csignal>
#include <utility>

#include "rendezvous/control/first_cause.h"

namespace ddprun::launcher {

namespace exit_status = rendezvous::exit_status;
using enum AgentState;
using enum AgentAction;

AgentStep AgentStateMachine::become(AgentState state, std::vector<AgentAction> actions,
                                    int signal) {
  state_ = state;
  return {state, std::move(actions), signal, 0};
}

AgentStep AgentStateMachine::done(int status) {
  state_ = Done;
  return {Done, {Exit}, 0, status};
}

AgentStep AgentStateMachine::round_started() {
  if (state_ == Joining || state_ == Stopped) return become(Running, {StartWorkers});
  return stay();
}

AgentStep AgentStateMachine::stop_received(int signal, std::optional<int> final_exit_status) {
  // Should the connection break before `finish` comes, the job's verdict is known nevertheless.
  if (final_exit_status) left_with_ = final_exit_status;
  switch (state_) {
    case Running:
      return become(Stopping, {StopWorkers}, signal);
    case Succeeded:
      return become(Stopped, {ReportReaped});
    default:
      return stay();  // Stopping already: it reports when it is done.
  }
}

AgentStep AgentStateMachine::finish_received(int status) {
  switch (state_) {
    case Running:
      end_ = status;
      return become(Stopping, {StopWorkers}, SIGTERM);
    case Stopping:
      end_ = status;
      return stay();
    case Done:
      return stay();
    default:
      return done(status);
  }
}

AgentStep AgentStateMachine::refused(int status) { return finish_received(status); }

AgentStep AgentStateMachine::coordinator_lost() {
  if (end_) return stay();  // It had told us the end before.
  return finish_received(left_with_.value_or(exit_status::coordinator_lost));
}

AgentStep AgentStateMachine::unreachable() {
  return finish_received(exit_status::rendezvous_timeout);
}

AgentStep AgentStateMachine::worker_failed() {
  if (state_ == Running) return become(Stopping, {ReportFailure, StopWorkers}, SIGTERM);
  return stay();
}

AgentStep AgentStateMachine::start_failed() {
  // Nothing is left to stop: WorkerGroup::start() has killed those that it had started.
  if (state_ == Running) return become(Stopped, {ReportFailure, ReportReaped});
  return stay();
}

AgentStep AgentStateMachine::workers_succeeded() {
  if (state_ == Running) return become(Succeeded, {ReportSucceeded});
  return stay();
}

AgentStep AgentStateMachine::workers_reaped() {
  if (state_ != Stopping) return stay();
  if (end_) return done(*end_);
  return become(Stopped, {ReportReaped});
}

AgentStep AgentStateMachine::signal_received(int signal, bool connected) {
  ++signals_;
  // Who presses a key again wants an end now; a second SIGTERM changes nothing (docs/failures.md).
  const bool impatient = signals_ > 1 && (signal == SIGINT || signal == SIGQUIT);
  if (signals_ == 1 && !left_with_) {
    left_with_ = signal == SIGTERM ? exit_status::preempted : 128 + signal;
  }
  switch (state_) {
    case Joining:
    case Stopped:
      if (!connected || impatient) return done(left_with_.value_or(128 + signal));
      if (signals_ > 1) return stay();
      return become(Stopped, {SayLeaving});
    case Running:
      return become(Stopping, {SayLeaving, StopWorkers}, signal);
    case Succeeded:
      return become(Stopped, {SayLeaving, ReportReaped});
    case Stopping:
      if (impatient) return become(Stopping, {KillWorkers});
      if (signals_ == 1) return become(Stopping, {SayLeaving});
      return stay();
    case Done:
      return stay();
  }
  return stay();
}

AgentStep AgentStateMachine::leaving_overdue() {
  if (state_ == Stopped && left_with_) return done(*left_with_);
  return stay();
}

}  // namespace ddprun::launcher
