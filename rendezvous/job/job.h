// The job as its coordinator sees it: one verdict for all nodes, decided without I/O or a clock.
//
//              round closes                a worker failed, a node was lost, left or joined
//   Forming ----------------> Running ------------------------------------------> Stopping
//      ^  |                      |                                                  |    |
//      |  | join timeout         | all workers of all nodes exited 0                |    |
//      |  +-----------------+    |    +---------------------------------------------+    |
//      |                    v    v    v   all reaped, no restart left                    |
//      |                     Finished                                                    |
//      +---------------------------------------------------------------------------------+
//                              all reaped, a restart is left
//
// rendezvous/coordinator.cpp feeds in messages, lost connections and ticks, and carries out what
// comes back, in order. The restart budget is one counter for the whole job; every failure, a lost
// node too, takes one from it (restart_policy.h). Changes of membership are free: a node that joins
// an elastic job, one that leaves it after SIGTERM, the loss of one that came later (newcomers.h),
// and a node that has replaced workers that it had lost. However a node went, the others wait
// for others in its place, up to the join time-out, when fewer than MIN are left. When the
// coordinator itself is lost, an agent's takes over and goes on in Running (takeover/takeover.h);
// one that is only cut off from most nodes must stop for that reason, and so must one that hears of
// another's later term; one cut off from half of them needs an arbiter's word before the next round
// (mandate.h). Who may come is admission.h's.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/control/liveness.h"
#include "rendezvous/control/word.h"
#include "rendezvous/job/attempt_cause.h"
#include "rendezvous/job/forming_round.h"
#include "rendezvous/job/gathering.h"
#include "rendezvous/job/mandate.h"
#include "rendezvous/job/newcomers.h"
#include "rendezvous/job/rank_claims.h"
#include "rendezvous/job/restart_policy.h"
#include "rendezvous/job/roster.h"
#include "rendezvous/job/round.h"

namespace ddprun::rendezvous {

// What the shell must do.
struct SendTo {
  PeerId peer = 0;
  ControlMessage message;
};
struct CloseAfterSending {
  PeerId peer = 0;
};
struct StartAttempt {  // Empty the store; comes before the messages that start workers.
  RoundName round;
};
struct Members {  // These have workers now, and nobody else; comes before the messages that start
                  // them.
  std::vector<PeerId> peers;
};
struct Log {
  enum class Level { Info, Warning } level = Level::Info;
  std::string text;
  // Whose doing it is when that is no member: the shell adds its address, and bounds how many such
  // lines there are.
  std::optional<PeerId> stranger = {};
};
struct AskForWord {  // Of the arbiter; what it says comes to on_word().
  WordWish wish;
};
using JobAction = std::variant<SendTo, CloseAfterSending, StartAttempt, Members, Log, AskForWord>;
using JobActions = std::vector<JobAction>;

struct JobLimits {
  std::string run_id;
  RoundLimits round;
  RestartLimits restarts;
  std::uint64_t restart_seed = 0;          // RestartPolicy's.
  Milliseconds heartbeat_interval{1'000};  // 0: none are sent or expected (one node).
  Milliseconds heartbeat_timeout{5'000};
  // How long a member may take to say that its workers have started, or, after a stop, that they
  // are gone. It is alive all that time: without these, one that says neither would hold up the
  // others for ever.
  Milliseconds start_timeout{30'000};
  Milliseconds stop_timeout{120'000};
  Newcomers::Limits newcomers;
  std::string host_node_id;  // The agent that hosts the endpoint.
  std::string master_addr;   // Passed on to workers.
  int master_port = 0;
  bool may_be_taken_over = false;  // If this coordinator is lost, an agent may go on in its place.
  Arbitration arbitration = Arbitration::None;
  std::string job;                  // As Succession has it.
  Milliseconds word_limit{50'000};  // Waits for the arbiter for so long.
};

class Job {
 public:
  Job(JobLimits limits, TimePoint now);
  // Goes on with the last round. Its members have the heartbeat time-out to come back, and say then
  // how they fared; the node of the lost coordinator is lost with it.
  Job(JobLimits limits, const Inherited& inherited, TimePoint now);
  // Once, before anything else.
  JobActions take_over(const Inherited& inherited, TimePoint now);

  JobActions on_message(PeerId peer, const ControlMessage& message, TimePoint now);
  JobActions on_lost(PeerId peer, const std::string& why, TimePoint now);
  JobActions on_word(const Word& word, TimePoint now);
  JobActions on_tick(TimePoint now);
  // Another one coordinates the job: nothing is started here any more, and the nodes that are here
  // may go to that one.
  JobActions step_down(const std::string& why);
  // How far the workers say they are, in any unit that grows (rendezvous/contract/progress_key.h).
  // To be told before each of the events above, which may be the end of the attempt.
  void on_progress(std::int64_t position);
  std::optional<TimePoint> next_tick() const;  // When on_tick is due; nothing = never.

  // For who looks at the job: all that are here, and what is known of them without asking.
  std::vector<NodeTold> nodes(TimePoint now) const;
  const std::string& run_id() const { return limits_.run_id; }

  RoundName round() const { return mandate_.round(); }  // Attempt -1 before the first one.
  int attempt() const { return round().attempt; }
  bool finished() const { return phase_ == Phase::Finished; }
  // For the tests and the simulation: what its nodes were told to exit with, once they were.
  std::optional<int> ended_with() const {
    return finish_ ? std::optional(finish_->exit_status) : std::nullopt;
  }
  bool stepped_down() const { return stepped_down_; }

 private:
  using Node = Roster::Node;
  using Part = Roster::Part;
  enum class Phase { Forming, Running, Stopping, Finished };
  enum class AskedAgain { Nobody, Newcomer, Member };

  void hear_stranger(PeerId peer, const ControlMessage& message, TimePoint now);
  void admit(PeerId peer, const Hello& hello, TimePoint now);
  void let_in(PeerId peer, const Hello& hello, TimePoint now);
  void contest_rank(PeerId peer, const Hello& hello, PeerId holder, TimePoint now);
  void refuse_claims(const Node& holder);
  void admit_claims(PeerId gone, TimePoint now);
  void settle_claims(TimePoint now, TimePoint::duration late);
  void replace(PeerId old, const std::string& why, TimePoint now);
  void send_on(PeerId peer, const Hello& hello);
  void refuse(PeerId peer, Refusal refusal);
  void welcome(PeerId peer);
  void come_back(PeerId peer, const Hello& hello, TimePoint now);
  void join_late(PeerId peer, const Hello& hello, TimePoint now);
  void resign(const std::string& node_id);
  Succession succession() const;
  void tell_succession();
  bool can_hand_over(const Node& leaver, const FirstCause& cause) const;
  bool others_can_lead() const;
  void hand_over(const FirstCause& cause);
  void obey(const Mandate::Ruling& ruling);
  void give_way(const std::string& why);
  void worker_failed(Node& node, const WorkerFailed& message, TimePoint now);
  void advise_on_early_end(FirstCause& cause) const;
  void workers_succeeded(Node& node, RoundName of);
  void reaped(Node& node, const Reaped& message, TimePoint now);
  void stop_for_member(const FirstCause& cause, TimePoint now);
  FirstCause placed(const Node& node, FirstCause cause) const;
  void consider_earlier(FirstCause cause, TimePoint now);
  void can_grow(const Node& node, const CanGrow& message, TimePoint now);
  void leaving(Node& node, const Leaving& message, TimePoint now);
  void lose(PeerId peer, const std::string& why, TimePoint now);
  void beat(TimePoint now);
  void put_out(PeerId peer, Finish finish, const std::string& why, TimePoint now);
  void give_up_unready(TimePoint now, TimePoint::duration late);
  // Who coordinates belongs to the job: it cannot be put out.
  bool came_later(const Node& node) const {
    return limits_.round.elastic && !node.founder && node.hello.node_id != limits_.host_node_id;
  }
  void count_departure(Node& node, TimePoint now);
  void go_on_without_newcomer(const std::string& what, TimePoint now);
  void count_as_lost(PeerId peer, const std::string& why, TimePoint now);
  bool may_fall_silent(const Node& node) const;
  void give_up_silent(TimePoint now, TimePoint::duration late);

  void try_close(TimePoint now);
  void enlarge(TimePoint now);
  void start_round(const RoundDecision& decision, const std::vector<std::size_t>& present,
                   TimePoint now);
  Council council_of(const RoundDecision& decision, const std::vector<std::size_t>& present) const;
  void tell_members();
  void tell_spare(PeerId peer, const std::string& text);
  void tell_waiting(const RoundDecision& decision);
  void fail_attempt(const FirstCause& cause, int signal, TimePoint now);
  void stop_all(std::string why, int signal, TimePoint now);
  void check_succeeded();
  void check_reaped(TimePoint now);
  void finish(int exit_status, const std::string& why);

  bool may_grow() const;
  // Also as one of another coordinator. It has work behind it, to go on with where there are nodes.
  bool has_begun() const { return attempt() >= 0 || forming_.has_begun_before(); }
  Mandate::Present is_here() const {
    return [this](const std::string& node_id) { return nodes_.with_id(node_id) != nullptr; };
  }
  bool has_heartbeats() const { return limits_.heartbeat_interval.count() > 0; }
  std::vector<std::size_t> taking_part(TimePoint now) const;
  std::vector<RoundNode> round_nodes(const std::vector<std::size_t>& present) const;
  bool others_go_on_without(const Node& leaver, const FirstCause& cause) const;
  void send_away(PeerId peer, ControlMessage last);
  void log(std::string text, Log::Level level = Log::Level::Info);
  JobActions take() { return std::exchange(actions_, {}); }

  JobLimits limits_;
  Phase phase_ = Phase::Forming;
  Roster nodes_;
  Mandate mandate_;
  TimePoint started_;  // This attempt.
  FormingRound forming_;
  TimePoint next_beat_;
  RestartPolicy restarts_;
  Newcomers newcomers_;
  std::optional<TimePoint> ready_by_;       // For those that have not started, or not stopped.
  std::optional<TimePoint> enlarge_again_;  // Somebody stands by until then.
  RankClaims claims_;
  std::optional<Stop> stop_;   // Of this attempt, when it is being stopped.
  std::int64_t progress_ = 0;  // The furthest of all attempts.
  bool progressed_ = false;    // This attempt has come so far.
  AttemptCause cause_;
  // Whose workers ended with 75 in this attempt, before anybody had been told to stop.
  AskedAgain asked_again_ = AskedAgain::Nobody;
  std::string handed_over_by_;  // It leaves, although its goodbye may be still on its way.
  std::optional<FirstCause> hands_over_;  // Stopping: why this node leaves once all are reaped.
  std::optional<int> verdict_;  // Stopping: the exit status when no further attempt follows.
  std::optional<Finish> finish_;
  bool stepped_down_ = false;
  JobActions actions_;  // Collected by the event in progress.
};

}  // namespace ddprun::rendezvous
