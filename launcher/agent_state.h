// What this node's agent does next, decided without touching a process, a socket or a clock.
//
//            round                    all workers exited 0
//   Joining --------> Running -----------------------------> Succeeded
//                      ^   |                                    |   |
//                      |   | a worker failed, stop,        stop |   | finish
//                      |   | signal, coordinator lost           |   |
//                      |   v                                    v   |
//                      | Stopping ------------------------> Stopped |
//                      |            workers reaped          |   |   |
//                      +------------------------------------+   v   v
//                                    round                       Done
//                                                      (also from Joining)
// With --node-check no workers are reported as reaped before this node is known to be fit for the
// attempt that may follow: an unfit one leaves then, as by SIGTERM.
//
// A node that the job goes on without, and would take back, goes back to Joining once its workers
// are reaped. Workers that are parked count as reaped (rendezvous/contract/spare_channel.h). Should
// the job end, or this node leave it, while they are, Stopped and Joining go back to Stopping until
// they are gone.
//
// launcher/agent.cpp feeds in the events and carries out the actions, in order. The coordinator
// decides for the job (rendezvous/job/job.h); this machine only keeps its own node honest: workers
// run only inside a round, and nobody leaves before they are reaped.
// A core: no sockets, threads or clock.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::launcher {

enum class AgentState {
  Joining,    // Not in a round yet; this node has no workers.
  Running,    // All local workers started; none is known to have failed.
  Succeeded,  // All local workers exited with 0; other nodes may still be at work.
  Stopping,   // A signal is out; waiting until the last local worker is reaped.
  Stopped,    // No workers, unless they are parked; waits for the next round or for the end.
  Done,       // Terminal.
};

enum class AgentAction {
  StartWorkers,
  StopWorkers,      // With AgentStep::signal, then the grace period, then SIGKILL.
  HoldWorkers,      // The same, but for those who can park: whether they are to is not known yet.
  ParkWorkers,      // The same, and those who can park are told to: another attempt follows.
  KillWorkers,      // SIGKILL, now.
  ReportFailure,    // Tell the coordinator `worker_failed` ...
  ReportSucceeded,  // ... `workers_succeeded` ...
  ReportReaped,     // ... `reaped` ...
  ReportCanGrow,    // ... `can_grow` ...
  CheckNode,        // Ask whether this node is fit: node_is_fit() or node_is_unfit() follows.
  Rejoin,           // Connect anew, as a new member.
  SayLeaving,       // ... `leaving`; the verdict comes back.
  AwaitVerdict,     // Call leaving_overdue() after AgentStep::verdict_limit.
  Exit,             // With AgentStep::exit_status.
};

struct AgentStep {
  AgentState state = AgentState::Joining;
  std::vector<AgentAction> actions;
  std::string reason;  // Never empty.
  int signal = 0;
  int exit_status = 0;
  std::chrono::milliseconds verdict_limit{0};
  std::chrono::milliseconds linger{0};  // Exit: how long the endpoint stays open for the others.
};

struct AgentLimits {
  std::chrono::milliseconds grace{30'000};          // Of workers that are asked to end.
  std::chrono::milliseconds goodbye{500};           // For a verdict after we said that we leave.
  std::chrono::milliseconds others{5'000};          // For other agents to hear the last verdict.
  std::chrono::milliseconds others_margin{10'000};  // On top of their grace.
  bool checks_node = false;
};

class AgentStateMachine {
 public:
  explicit AgentStateMachine(AgentLimits limits = {}) : limits_(limits) {}

  AgentState state() const { return state_; }

  // Whether the others depend on this node.
  void endpoint_opened() { hosts_endpoint_ = true; }
  void endpoint_closed() { hosts_endpoint_ = false; }

  // Whether processes are kept for another attempt, or may be (WorkerGroup::kept()). To be told
  // before each of the events below: an end of the job ends these, too.
  void workers_kept(bool kept) { kept_ = kept; }

  // From the coordinator.
  AgentStep round_started();
  AgentStep stop_received(int signal, std::optional<int> final_exit_status);
  AgentStep finish_received(int exit_status);
  AgentStep refused(int exit_status);
  AgentStep coordinator_lost();
  AgentStep unreachable();  // The join timeout passed before there was a coordinator.
  AgentStep cut_off();      // The job goes on without this node, which may join it again.

  // From the workers. A failure after the first one, or while stopping, changes nothing.
  AgentStep worker_failed();
  AgentStep start_failed();
  AgentStep workers_succeeded();
  AgentStep workers_reaped();
  AgentStep replacements_ready();  // Of workers that this attempt goes on without.

  // After CheckNode, or before this node joins, or joins anew; if anybody still waits for it.
  bool awaits_check() const { return checking_ || state_ == AgentState::Joining; }
  AgentStep node_is_fit();
  AgentStep node_is_unfit(bool connected);

  // From outside. `connected`: whether a coordinator could answer. The first signal stops the job
  // in good order; a second SIGINT or SIGQUIT is somebody at a keyboard who wants it over.
  AgentStep signal_received(int signal, bool connected);
  AgentStep leaving_overdue();  // No verdict came in time after AwaitVerdict.

 private:
  AgentStep become(AgentState state, std::string reason, std::vector<AgentAction> actions = {},
                   int signal = 0);
  AgentStep nobody_left(std::string reason);
  AgentStep end_with(int exit_status, std::string reason);
  AgentStep done(int exit_status, std::string reason);
  // Nobody runs here, and some are parked.
  bool holds_parked() const {
    return kept_ && (state_ == AgentState::Stopped || state_ == AgentState::Joining);
  }
  AgentStep stay(std::string reason) { return become(state_, std::move(reason)); }

  AgentLimits limits_;
  AgentState state_ = AgentState::Joining;
  std::optional<int> left_with_;  // The exit status that our own signal, or a final stop, implies.
  std::optional<int> end_;        // Stopping: how to exit once the workers are reaped.
  int signals_ = 0;
  bool awaits_verdict_ = false;
  bool hosts_endpoint_ = false;
  bool kept_ = false;
  bool rejoins_ = false;   // Was cut off, and has not been in a round since.
  bool checking_ = false;  // CheckNode is out, and ReportReaped is not.
};

}  // namespace ddprun::launcher
