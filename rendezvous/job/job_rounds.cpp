// How a job's attempts begin and end, apart from who says what: the arrows of job.h's picture.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/job/job.h"

namespace ddprun::rendezvous {
namespace {

constexpr Milliseconds waiting_repeat{10'000};  // How often nodes hear again whom they wait for.

}  // namespace

// ---- rounds ----

void Job::try_close(TimePoint now) {
  if (not_before_ && now < *not_before_) {
    look_again_ = not_before_;
    return;
  }
  RoundState state = round_state();
  const int needed = limits_.round.elastic ? limits_.round.nodes_min : limits_.round.nodes_max;
  const bool enough = static_cast<int>(state.nodes.size()) >= needed;
  if (!enough) enough_since_.reset();
  if (enough && !enough_since_) enough_since_ = now;
  state.enough_since = enough_since_;

  const RoundDecision decision = decide(state, limits_.round, now);
  look_again_ = decision.look_again;
  switch (decision.kind) {
    case RoundDecision::Kind::Wait:
      return tell_waiting(decision, now);
    case RoundDecision::Kind::Close:
      return start_round(decision, now);
    case RoundDecision::Kind::TimedOut:
      return finish(exit_status::rendezvous_timeout, decision.reason);
  }
}

void Job::start_round(const RoundDecision& decision, TimePoint now) {
  phase_ = Phase::Running;
  ++attempt_;
  started_ = now;
  not_before_.reset();
  cause_.reset();
  failed_at_.reset();
  actions_.push_back(StartAttempt{attempt_});
  std::vector<std::size_t> present;  // Index of RoundState's nodes -> index of nodes_.
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].part = Part::Idle;
    nodes_[i].group_rank = -1;
    if (!nodes_[i].leaving) present.push_back(i);
  }
  std::vector<std::string> addresses;
  for (const Place& place : decision.members) {
    addresses.push_back(nodes_[present[place.node]].hello.address);
  }
  for (const Place& place : decision.members) {
    Node& node = nodes_[present[place.node]];
    node.part = Part::Running;
    node.group_rank = place.group_rank;
    actions_.push_back(
        SendTo{node.peer, RoundStart{.attempt = attempt_,
                                     .max_restarts = limits_.restarts.restarts_max,
                                     .group_rank = place.group_rank,
                                     .group_world_size = static_cast<int>(decision.members.size()),
                                     .rank_base = place.rank_base,
                                     .world_size = place.world_size,
                                     .role_rank_base = place.role_rank_base,
                                     .role_world_size = place.role_world_size,
                                     .master_addr = limits_.master_addr,
                                     .master_port = limits_.master_port,
                                     .addresses = addresses}});
  }
  for (const Node& node : nodes_) {
    if (node.part == Part::Idle) tell_spare(node);
  }
}

void Job::tell_spare(const Node& node) {
  actions_.push_back(
      SendTo{node.peer, Waiting{.joined = static_cast<int>(nodes_.size()),
                                .wanted = limits_.round.nodes_max,
                                .text = "all places are taken; this node stands by as a spare"}});
}

void Job::tell_waiting(const RoundDecision& decision, TimePoint now) {
  look_again_ = std::min(look_again_.value_or(now + waiting_repeat), now + waiting_repeat);
  if (decision.joined == told_joined_ && now - told_waiting_ < waiting_repeat) return;
  told_joined_ = decision.joined;
  told_waiting_ = now;
  for (const Node& node : nodes_) {
    actions_.push_back(SendTo{
        node.peer,
        Waiting{.joined = decision.joined, .wanted = decision.wanted, .text = decision.reason}});
  }
}

// ---- verdicts ----

void Job::fail_attempt(const FirstCause& cause, int signal, TimePoint now) {
  cause_ = cause;
  const auto ran = std::chrono::duration_cast<Milliseconds>(now - started_);
  const RestartDecision next = restarts_.on_failure(cause, ran);
  if (!next.restart) verdict_ = exit_status_of(cause);
  if (next.delay.count() > 0) not_before_ = now + next.delay;
  stop_all(fmt::format("{}; {}", describe(cause), next.reason), signal, now);
}

void Job::stop_all(std::string why, int signal, TimePoint now) {
  phase_ = Phase::Stopping;
  const Stop stop{.attempt = attempt_,
                  .signal = signal,
                  .why = std::move(why),
                  .final_verdict = verdict_.has_value(),
                  .exit_status = verdict_.value_or(0),
                  .cause = cause_};
  for (const Node& node : nodes_) {
    if (node.part == Part::Running || node.part == Part::Succeeded) {
      actions_.push_back(SendTo{node.peer, stop});
    }
  }
  check_reaped(now);
}

// There is no limit on how long a node may take to succeed: it is alive, or it would be lost.
void Job::check_succeeded() {
  const auto busy = [](const Node& node) { return node.part == Part::Running; };
  if (std::none_of(nodes_.begin(), nodes_.end(), busy)) finish(0, "all workers succeeded");
}

void Job::check_reaped(TimePoint now) {
  const auto busy = [](const Node& node) {
    return node.part == Part::Running || node.part == Part::Succeeded;
  };
  if (std::any_of(nodes_.begin(), nodes_.end(), busy)) return;
  if (verdict_) return finish(*verdict_, cause_ ? describe(*cause_) : "the job was stopped");

  // A node that leaves while the others go on has its own end.
  for (const Node& node : nodes_) {
    if (!node.leaving) continue;
    actions_.push_back(SendTo{node.peer, Finish{.exit_status = exit_status::preempted,
                                                .why = "this node was preempted"}});
  }
  phase_ = Phase::Forming;
  // The join timeout begins anew: a node that was lost gets as long to come back as at the start.
  opened_ = now;
  enough_since_.reset();
  told_joined_ = -1;
  try_close(now);
}

void Job::finish(int exit_status, std::string why) {
  phase_ = Phase::Finished;
  for (const Node& node : nodes_) {
    actions_.push_back(SendTo{node.peer, Finish{exit_status, why, cause_}});
  }
  actions_.push_back(JobOver{exit_status});
}

}  // namespace ddprun::rendezvous
