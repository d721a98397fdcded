// The agent's transitions, each with its reason: what a node does is explained by these words alone
// when somebody reads its debug log after a bad night.
#include "launcher/agent_state.h"

#include <cassert>
#include <csignal>
#include <utility>

#include "rendezvous/control/first_cause.h"

namespace ddprun::launcher {

namespace exit_status = rendezvous::exit_status;
using enum AgentState;
using enum AgentAction;

AgentStep AgentStateMachine::become(AgentState state, std::string reason,
                                    std::vector<AgentAction> actions, int signal) {
  state_ = state;
  if (state != Stopped) checking_ = false;
  AgentStep step{.state = state, .actions = std::move(actions), .reason = std::move(reason)};
  step.signal = signal;
  // Whoever said that it leaves waits for the job's verdict, but not for ever; once is enough.
  if (state == Stopped && signals_ > 0 && !awaits_verdict_) {
    awaits_verdict_ = true;
    step.actions.push_back(AwaitVerdict);
    // Without the endpoint's host the other nodes would not hear the verdict: it stays as long as
    // their workers may take to end. Anybody else has nothing to lose but the job's own word.
    step.verdict_limit = hosts_endpoint_ ? limits_.grace + limits_.others_margin : limits_.goodbye;
  }
  return step;
}

AgentStep AgentStateMachine::done(int status, std::string reason) {
  // Nobody leaves before its workers are reaped: a worker without an agent is a process that
  // nobody ends.
  assert(state_ != Running && state_ != Stopping);
  AgentStep step = become(Done, std::move(reason), {Exit});
  step.exit_status = status;
  step.linger = signals_ > 0 ? limits_.goodbye : limits_.others;
  return step;
}

AgentStep AgentStateMachine::round_started() {
  if (state_ != Joining && state_ != Stopped) {
    return stay("a round while workers run or this node has left is not for us");
  }
  rejoins_ = false;
  return become(Running, "the round is closed", {StartWorkers});
}

AgentStep AgentStateMachine::stop_received(int signal, std::optional<int> final_exit_status) {
  if (state_ == Done) return stay("this node has ended");
  // Should the coordinator go before it says `finish`, this is how the job ended.
  if (final_exit_status) left_with_ = final_exit_status;
  switch (state_) {
    case Running:
      return become(Stopping, "the attempt is over everywhere",
                    {final_exit_status ? StopWorkers : ParkWorkers}, signal);
    case Stopping:
      if (final_exit_status) {
        if (!kept_) return stay("stopping already: it is reported when no worker is left");
        return become(Stopping, "no attempt follows for those who can park", {StopWorkers}, signal);
      }
      if (left_with_ || end_ || rejoins_) return stay("another attempt is not for this node");
      // Also where nobody can park: the group waits for the dead only as far as they are in its
      // way.
      return become(Stopping, "another attempt follows", {ParkWorkers}, signal);
    case Stopped:
      if (checking_ && final_exit_status && !kept_) {
        checking_ = false;
        return become(Stopped, "no attempt follows for which this node had to be fit",
                      {ReportReaped});
      }
      if (!kept_ || !final_exit_status) return stay("no worker is left, or it is parked");
      return become(Stopping, "no attempt follows for those that are parked", {StopWorkers},
                    signal);
    case Succeeded:
      return nobody_left("the attempt is over, and no worker is left here");
    case Joining:
    case Done:
      break;
  }
  return stay("no worker of this node is in an attempt");
}

AgentStep AgentStateMachine::finish_received(int status) {
  if (left_with_ == exit_status::unfit) status = exit_status::unfit;  // The job may be well.
  // Who was leaving anyway is not cut off: a scheduler queues it again for its own reason.
  if (status == exit_status::coordinator_lost) status = left_with_.value_or(status);
  return end_with(status, "the coordinator said that the job is over");
}

AgentStep AgentStateMachine::refused(int status) {
  return end_with(status, "the endpoint refused this node");
}

AgentStep AgentStateMachine::coordinator_lost() {
  if (end_) return stay("it had told us the end before");
  return end_with(left_with_.value_or(exit_status::coordinator_lost), "lost the coordinator");
}

AgentStep AgentStateMachine::unreachable() {
  return end_with(rejoins_ ? exit_status::coordinator_lost : exit_status::rendezvous_timeout,
                  "no coordinator within the join timeout");
}

AgentStep AgentStateMachine::cut_off() {
  // Who is leaving has nothing to come back for, and whose workers all succeeded nothing to do.
  if (left_with_ || end_ || state_ == Succeeded) return coordinator_lost();
  if (state_ == Done) return stay("this node has ended");
  rejoins_ = true;
  // Nobody knows yet whether others have what these hold: who can park keeps it.
  if (state_ == Running || (state_ == Stopping && kept_)) {
    return become(Stopping, "cut off from the job", {ParkWorkers}, SIGTERM);
  }
  if (state_ == Stopping) return stay("cut off; once the workers are reaped, we join again");
  return become(Joining, "cut off, and no worker runs here", {Rejoin});
}

AgentStep AgentStateMachine::end_with(int status, std::string reason) {
  if (kept_ && (state_ == Stopping || holds_parked())) {
    end_ = status;
    return become(Stopping, std::move(reason) + "; parked workers end with it", {StopWorkers},
                  SIGTERM);
  }
  switch (state_) {
    case Running:
      end_ = status;
      return become(Stopping, std::move(reason), {StopWorkers}, SIGTERM);
    case Stopping:
      end_ = status;
      return stay(std::move(reason) + "; once the workers are reaped, we end");
    case Done:
      return stay("this node has ended");
    default:
      return done(status, std::move(reason));
  }
}

// The report goes out before the others are stopped: the other nodes' workers wait in a collective
// that can no longer end, and every millisecond of theirs is lost.
AgentStep AgentStateMachine::worker_failed() {
  if (state_ != Running) return stay("the attempt was over before");
  return become(Stopping, "a worker failed by itself", {ReportFailure, HoldWorkers}, SIGTERM);
}

AgentStep AgentStateMachine::start_failed() {
  if (state_ != Running) return stay("the attempt was over before");
  return become(Stopped, "the workers could not be started, so none is left",
                {ReportFailure, ReportReaped});
}

AgentStep AgentStateMachine::workers_succeeded() {
  if (state_ != Running) return stay("the attempt was over before");
  return become(Succeeded, "all workers of this node succeeded", {ReportSucceeded});
}

AgentStep AgentStateMachine::workers_reaped() {
  if (state_ != Stopping) return stay("nobody had asked for it");
  state_ = Stopped;
  if (end_) return done(*end_, "the last worker is reaped, and the end was known");
  // A signal came after this node was cut off: nobody is there to say goodbye to.
  if (rejoins_ && left_with_) return done(*left_with_, "the last worker is reaped after a signal");
  if (rejoins_) return become(Joining, "the last worker is reaped: back into the job", {Rejoin});
  return nobody_left("the last worker is reaped");
}

AgentStep AgentStateMachine::nobody_left(std::string reason) {
  checking_ = limits_.checks_node && !left_with_;
  if (!checking_) return become(Stopped, std::move(reason), {ReportReaped});
  return become(Stopped, std::move(reason) + "; is this node fit for another attempt?",
                {CheckNode});
}

AgentStep AgentStateMachine::node_is_fit() {
  if (!std::exchange(checking_, false)) return stay("nobody waits for the answer any more");
  return become(Stopped, "this node is fit for another attempt", {ReportReaped});
}

// SIGTERM is what the coordinator hears, too: of an elastic job the others go on.
AgentStep AgentStateMachine::node_is_unfit(bool connected) {
  if (!awaits_check()) return stay("nobody waits for the answer any more");
  left_with_ = exit_status::unfit;
  return signal_received(SIGTERM, connected);
}

AgentStep AgentStateMachine::replacements_ready() {
  if (state_ != Running) return stay("the attempt is over, and the next one has them anyway");
  return become(Running, "this node could have all of its workers again", {ReportCanGrow});
}

AgentStep AgentStateMachine::signal_received(int signal, bool connected) {
  ++signals_;
  // Who presses a key again wants an end now; a second SIGTERM changes nothing (docs/failures.md).
  const bool impatient = signals_ > 1 && (signal == SIGINT || signal == SIGQUIT);
  if (!left_with_) left_with_ = signal == SIGTERM ? exit_status::preempted : 128 + signal;
  const bool owes_word = std::exchange(checking_, false);
  if (holds_parked()) {
    if (!connected) end_ = left_with_;
    return become(Stopping, "a signal ends the parked workers", {SayLeaving, StopWorkers}, signal);
  }
  switch (state_) {
    case Joining:
    case Stopped:
      if (!connected) return done(*left_with_, "nobody to say goodbye to");
      if (impatient) return done(*left_with_, "somebody wants it over now");
      if (signals_ > 1) return stay("schedulers repeat SIGTERM");
      if (owes_word) return become(Stopped, "a signal, or unfit", {SayLeaving, ReportReaped});
      return become(Stopped, "a signal before there were workers, or after", {SayLeaving});
    case Running:
      return become(Stopping, "a signal ends the job", {SayLeaving, StopWorkers}, signal);
    case Succeeded:
      return become(Stopped, "a signal, and no worker is left here", {SayLeaving, ReportReaped});
    case Stopping:
      if (impatient) return become(Stopping, "somebody wants it over now", {KillWorkers});
      if (signals_ == 1 && kept_) {
        return become(Stopping, "a signal while workers park", {SayLeaving, StopWorkers}, signal);
      }
      if (signals_ == 1) return become(Stopping, "a signal while stopping", {SayLeaving});
      return stay("schedulers repeat SIGTERM");
    case Done:
      break;
  }
  return stay("this node has ended");
}

AgentStep AgentStateMachine::leaving_overdue() {
  if (state_ != Stopped || !left_with_) return stay("the verdict, or another round, has come");
  return done(*left_with_, "no verdict came after our goodbye");
}

}  // namespace ddprun::launcher
