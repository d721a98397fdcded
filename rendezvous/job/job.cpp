// One verdict for all nodes: what the coordinator hears, in, and what it has to say, out. Sockets
// and timers are coordinator.cpp's.
#include "rendezvous/job/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/counted.h"
#include "rendezvous/time_text.h"

namespace ddprun::rendezvous {
namespace {

constexpr Milliseconds waiting_repeat{10'000};  // How often nodes hear again whom they wait for.

// "node 1 (host-b)", or "node host-b" before it has a rank.
std::string printed_name(const Hello& hello) {
  if (!hello.node_rank) return "node " + hello.host;
  return fmt::format("node {} ({})", *hello.node_rank, hello.host);
}

Refusal ending(const Hello& hello) {
  return {"this job is ending", fmt::format("node {} came when the job was ending", hello.host)};
}

}  // namespace

Job::Job(JobLimits limits, TimePoint now)
    : limits_(std::move(limits)),
      opened_(now),
      next_beat_(now + limits_.heartbeat_interval),
      restarts_(limits_.restarts, limits_.restart_seed) {
  look_again_ = now + limits_.round.join_timeout;
}

// ---- events ----

JobActions Job::on_message(PeerId peer, const ControlMessage& message, TimePoint now) {
  Node* node = find(peer);
  if (node == nullptr) {
    hear_stranger(peer, message, now);
    return take();
  }
  if (std::holds_alternative<Hello>(message)) {
    log(fmt::format("node {} said hello twice", node->hello.host), Log::Level::Warning);
    return take();
  }
  node->liveness.heard(now);
  refuse_claims(*node);
  if (phase_ == Phase::Finished) return take();
  if (const auto* failed = std::get_if<WorkerFailed>(&message)) worker_failed(*node, *failed, now);
  if (const auto* done = std::get_if<WorkersSucceeded>(&message)) {
    workers_succeeded(*node, done->attempt, now);
  }
  if (const auto* gone = std::get_if<Reaped>(&message)) reaped(*node, *gone, now);
  if (const auto* bye = std::get_if<Leaving>(&message)) leaving(*node, bye->signal, now);
  return take();
}

JobActions Job::on_lost(PeerId peer, const std::string& why, TimePoint now) {
  claims_.drop(peer);
  lose(peer, why, now);
  admit_claims(peer, now);
  return take();
}

void Job::on_progress(std::int64_t position) {
  if (position <= progress_) return;
  progress_ = position;
  progressed_ = true;
}

JobActions Job::on_tick(TimePoint now) {
  if (has_heartbeats()) {
    const auto late = now - next_tick().value_or(now);
    settle_claims(now, late);
    give_up_silent(now, late);
    if (now >= next_beat_) beat(now);
  }
  if (phase_ == Phase::Forming) try_close(now);
  return take();
}

std::optional<TimePoint> Job::next_tick() const {
  std::optional<TimePoint> next;
  if (phase_ == Phase::Finished) return next;
  const auto consider = [&](TimePoint time) { next = std::min(next.value_or(time), time); };
  if (has_heartbeats()) {
    consider(next_beat_);
    for (const Node& node : nodes_) consider(node.liveness.deadline());
    if (const auto claim = claims_.next_deadline()) consider(*claim);
  }
  if (phase_ == Phase::Forming && look_again_) consider(*look_again_);
  return next;
}

// ---- nodes come ----

void Job::hear_stranger(PeerId peer, const ControlMessage& message, TimePoint now) {
  if (const auto* hello = std::get_if<Hello>(&message)) return admit(peer, *hello, now);
  if (claims_.waits(peer)) {
    if (!std::holds_alternative<Leaving>(message)) return;
    claims_.drop(peer);
    actions_.push_back(CloseAfterSending{peer});
  } else if (phase_ != Phase::Finished) {
    const std::string why = "the first message must be hello";
    refuse(peer, {why, why});
  }
}

void Job::admit(PeerId peer, const Hello& hello, TimePoint now) {
  // An agent that was cut off may be back before its silence was noticed here. Nobody else knows
  // the random node_id that it had.
  const auto replaced = [&](const Node& node) { return node.hello.node_id == hello.replaces; };
  const auto old = std::find_if(nodes_.begin(), nodes_.end(), replaced);
  if (!hello.replaces.empty() && old != nodes_.end()) {
    replace(*old, "it was cut off, and made a new connection", now);
  }
  if (phase_ == Phase::Finished || verdict_) return refuse(peer, ending(hello));
  const auto same_id = [&](const Node& node) { return node.hello.node_id == hello.node_id; };
  if (std::any_of(nodes_.begin(), nodes_.end(), same_id)) {
    const std::string why = "an agent with this node_id is already here";
    return refuse(peer, {why, why});
  }
  std::vector<RoundNode> present;
  for (const Node& node : nodes_) {
    present.push_back(
        {.host = node.hello.host, .from = node.hello.from, .node_rank = node.hello.node_rank});
  }
  if (auto refusal = check_hello(hello, limits_.run_id, limits_.round, present)) {
    if (claim_rank(peer, hello, now)) return;
    return refuse(peer, std::move(*refusal));
  }
  nodes_.push_back({peer, hello, Liveness(limits_.heartbeat_timeout, now)});
  const auto ms = [](Milliseconds time) { return static_cast<int>(time.count()); };
  actions_.push_back(SendTo{peer, Welcome{.heartbeat_interval_ms = ms(limits_.heartbeat_interval),
                                          .heartbeat_timeout_ms = ms(limits_.heartbeat_timeout)}});
  if (limits_.round.nodes_max > 1) {
    log(fmt::format("{} joined with {}", printed_name(hello), counted(hello.nproc, "worker")));
  }
  if (phase_ == Phase::Forming) return try_close(now);

  // A newcomer enlarges a running elastic job, unless that job is about to end anyway.
  const auto members = std::count_if(nodes_.begin(), nodes_.end(),
                                     [](const Node& node) { return node.part == Part::Running; });
  const bool all_running = std::none_of(
      nodes_.begin(), nodes_.end(), [](const Node& node) { return node.part == Part::Succeeded; });
  if (phase_ == Phase::Running && limits_.round.elastic && all_running &&
      members < limits_.round.nodes_max) {
    stop_all(fmt::format("node {} joined, the job goes on with it", hello.host), SIGTERM, now);
  } else if (phase_ == Phase::Running && members >= limits_.round.nodes_max) {
    tell_spare(nodes_.back());
  }
}

// True if nothing is wrong with `hello` but that an agent of its host has its rank already; it then
// waits for the answer which of the two it is.
bool Job::claim_rank(PeerId peer, const Hello& hello, TimePoint now) {
  if (limits_.round.elastic || !has_heartbeats()) return false;
  if (check_hello(hello, limits_.run_id, limits_.round, {})) return false;
  const auto holds_it = [&](const Node& node) {
    return node.hello.node_rank == hello.node_rank && node.hello.host == hello.host &&
           node.hello.node_id != limits_.host_node_id;
  };
  const auto holder = std::find_if(nodes_.begin(), nodes_.end(), holds_it);
  if (holder == nodes_.end()) return false;
  actions_.push_back(
      Log{Log::Level::Info,
          fmt::format("{} is here a second time; the first one, at {}, has {} to answer",
                      printed_name(hello), holder->hello.from,
                      time_text(2 * limits_.heartbeat_interval)),
          peer});
  claims_.add({peer, hello, holder->peer, now + 2 * limits_.heartbeat_interval});
  return true;
}

void Job::refuse_claims(const Node& holder) {
  for (const RankClaims::Claim& claim : claims_.take_those_on(holder.peer)) {
    refuse(claim.newcomer,
           {fmt::format("--node-rank {} is already taken by another agent of {}, which is alive: "
                        "give each node its own rank",
                        claim.hello.node_rank.value_or(-1), claim.hello.host),
            fmt::format("node {} asked for --node-rank {}, whose first agent, at {}, is alive",
                        claim.hello.host, claim.hello.node_rank.value_or(-1), holder.hello.from)});
  }
}

void Job::admit_claims(PeerId gone, TimePoint now) {
  for (const RankClaims::Claim& claim : claims_.take_those_on(gone)) {
    admit(claim.newcomer, claim.hello, now);
  }
}

void Job::settle_claims(TimePoint now, TimePoint::duration late) {
  const Milliseconds patience = 2 * limits_.heartbeat_interval;
  while (const auto claim = claims_.take_due(now, late, patience)) {
    late = {};
    if (const Node* holder = find(claim->holder)) {
      const Node old = *holder;
      replace(old, "it fell silent, and its host has started another agent", now);
    }
    admit(claim->newcomer, claim->hello, now);
  }
}

// Takes `old` for lost although its time-out has not passed.
void Job::replace(const Node& old, const std::string& why, TimePoint now) {
  const PeerId peer = old.peer;
  actions_.push_back(CloseAfterSending{peer});
  lose(peer, why, now);
}

void Job::refuse(PeerId peer, Refusal refusal) {
  actions_.push_back(Log{Log::Level::Warning, std::move(refusal.logged), peer});
  actions_.push_back(SendTo{peer, Refused{.reason = std::move(refusal.told)}});
  actions_.push_back(CloseAfterSending{peer});
}

// ---- what nodes say ----

// What a node says of itself is completed by what the round knows of it.
FirstCause Job::placed(const Node& node, FirstCause cause) const {
  cause.host = node.hello.host;
  cause.node_rank = node.group_rank;
  cause.attempt = attempt_;
  return cause;
}

// By this coordinator's clock. No failure of this attempt is older than the attempt.
TimePoint Job::time_of(const FirstCause& cause, TimePoint now) const {
  const auto ran = std::chrono::duration_cast<Milliseconds>(now - started_);
  return now - std::min(Milliseconds(cause.age_ms), ran);
}

void Job::worker_failed(Node& node, const WorkerFailed& message, TimePoint now) {
  if (message.attempt != attempt_ || node.part != Part::Running) return;
  const FirstCause cause = placed(node, message.cause);
  if (phase_ == Phase::Stopping) return consider_earlier(cause, now);
  if (phase_ != Phase::Running) return;
  if (cause.kind == FirstCause::Kind::WorkerFailed) failed_at_ = time_of(cause, now);
  fail_attempt(cause, SIGTERM, now);
}

// Two nodes tell how long ago their workers failed, each by its own clock; a report's way to here
// is not in that. Only a difference that no way explains makes the later report the earlier
// failure.
void Job::consider_earlier(FirstCause cause, TimePoint now) {
  constexpr Milliseconds way_max{1'000};
  const auto is_workers = [](const FirstCause& it) {
    return it.kind == FirstCause::Kind::WorkerFailed;
  };
  if (!failed_at_ || !cause_ || !is_workers(*cause_) || !is_workers(cause)) return;
  const TimePoint at = time_of(cause, now);
  if (at + way_max >= *failed_at_) return;
  // The verdict is out with the exit status of the worker that ended first; that stays.
  cause.ended_first = cause_->ended_first.empty() ? describe(*cause_) : cause_->ended_first;
  cause.exit_code = cause_->exit_code;
  cause.signal = cause_->signal;
  cause_ = std::move(cause);
  failed_at_ = at;
  log(fmt::format("the first error was another one: {}", describe(*cause_)), Log::Level::Warning);
}

void Job::workers_succeeded(Node& node, int attempt, TimePoint) {
  if (attempt != attempt_ || node.part != Part::Running) return;
  node.part = Part::Succeeded;
  if (phase_ == Phase::Running) check_succeeded();
}

void Job::reaped(Node& node, const Reaped& message, TimePoint now) {
  if (message.attempt != attempt_ || node.part == Part::Idle) return;
  if (phase_ == Phase::Stopping && message.cause)
    consider_earlier(placed(node, *message.cause), now);
  node.part = Part::Reaped;
  if (phase_ == Phase::Stopping) check_reaped(now);
}

// The launcher of `node` got a signal. That ends the job everywhere, except that an elastic job
// goes on without a node that was preempted, or waits for another one in its place.
void Job::leaving(Node& node, int signal, TimePoint now) {
  if (node.leaving) return;
  node.leaving = true;
  const FirstCause cause{.kind = FirstCause::Kind::Interrupted,
                         .host = node.hello.host,
                         .node_rank = node.group_rank,
                         .pid = node.hello.pid,
                         .signal = signal,
                         .retriable = false,
                         .attempt = std::max(attempt_, 0)};
  if (others_go_on_without(node, signal)) {
    went_.push_back(fmt::format("{} left after {}", printed_name(node.hello), signal_name(signal)));
    if (phase_ == Phase::Running && node.part != Part::Idle) {
      return stop_all(fmt::format("{}; the others go on", describe(cause)), SIGTERM, now);
    }
    if (phase_ == Phase::Stopping) return;  // check_reaped() says goodbye to it.
    actions_.push_back(SendTo{node.peer, Finish{exit_status_of(cause), describe(cause), cause}});
    if (phase_ == Phase::Forming) try_close(now);
    return;
  }
  if (phase_ == Phase::Running) return fail_attempt(cause, signal, now);
  if (!verdict_) cause_ = cause;
  if (!verdict_) verdict_ = exit_status_of(cause);
  if (phase_ == Phase::Forming) finish(*verdict_, describe(cause));
}

void Job::lose(PeerId peer, const std::string& why, TimePoint now) {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const Node& node) { return node.peer == peer; });
  if (found == nodes_.end()) return;
  const Node lost = *found;
  nodes_.erase(found);
  if (phase_ == Phase::Finished) return;
  if (!lost.leaving) {
    log(fmt::format("lost {}: {}", printed_name(lost.hello), why), Log::Level::Warning);
    went_.push_back(fmt::format("{} was lost", printed_name(lost.hello)));
  }
  if (phase_ == Phase::Forming) return try_close(now);
  if (phase_ == Phase::Stopping) return check_reaped(now);
  if (lost.part == Part::Succeeded) return check_succeeded();  // It had nothing left to do.
  if (lost.part != Part::Running) return;
  fail_attempt({.kind = FirstCause::Kind::NodeLost,
                .host = lost.hello.host,
                .node_rank = lost.group_rank,
                .attempt = attempt_,
                .message = why},
               SIGTERM, now);
}

void Job::beat(TimePoint now) {
  next_beat_ = now + limits_.heartbeat_interval;
  for (const Node& node : nodes_) actions_.push_back(SendTo{node.peer, Heartbeat{}});
}

void Job::give_up_silent(TimePoint now, TimePoint::duration late) {
  // Collected first, since lose() takes them out of nodes_.
  std::vector<PeerId> silent;
  for (Node& node : nodes_) {
    if (node.liveness.silent(now, late)) silent.push_back(node.peer);
  }
  for (const PeerId peer : silent) {
    const std::string why =
        fmt::format("nothing heard from it for {}", time_text(limits_.heartbeat_timeout));
    // Should it only have been asleep, this tells it that the others have gone on without it.
    actions_.push_back(SendTo{peer, Finish{.exit_status = exit_status::node_lost,
                                           .why = "this node counts as lost: " + why,
                                           .may_rejoin = limits_.round.elastic}});
    actions_.push_back(CloseAfterSending{peer});
    lose(peer, why, now);
    admit_claims(peer, now);
  }
}

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
    case RoundDecision::Kind::TimedOut: {
      std::string why = decision.reason;
      for (const std::string& one : went_) why += "; " + one;
      return finish(exit_status::rendezvous_timeout, why);
    }
  }
}

void Job::start_round(const RoundDecision& decision, TimePoint now) {
  phase_ = Phase::Running;
  ++attempt_;
  started_ = now;
  not_before_.reset();
  cause_.reset();
  failed_at_.reset();
  progressed_ = false;
  went_.clear();
  // Before any RoundStart: the first worker may be at the store before the last agent has heard.
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
  const RestartDecision next = restarts_.on_failure(cause, ran, progressed_);
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

// No attempt begins before every node has said that its workers are gone: an old one that still
// holds a GPU or a port would take the new one down with it.
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
  opened_ = now;
  enough_since_.reset();
  told_joined_ = -1;
  try_close(now);
}

void Job::finish(int exit_status, const std::string& why) {
  phase_ = Phase::Finished;
  for (const Node& node : nodes_) {
    actions_.push_back(SendTo{node.peer, Finish{exit_status, why, cause_}});
  }
  actions_.push_back(JobOver{exit_status});
}

// ---- helpers ----

Job::Node* Job::find(PeerId peer) {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const Node& node) { return node.peer == peer; });
  return found == nodes_.end() ? nullptr : &*found;
}

RoundState Job::round_state() const {
  RoundState state{.opened = opened_, .enough_since = {}, .reforming = attempt_ >= 0};
  for (const Node& node : nodes_) {
    if (node.leaving) continue;
    state.nodes.push_back({.host = node.hello.host,
                           .node_rank = node.hello.node_rank,
                           .nproc = node.hello.nproc,
                           .role = node.hello.role,
                           .hosts_endpoint = node.hello.node_id == limits_.host_node_id});
  }
  return state;
}

// Whether an elastic job has no need of `leaver`. It must not be the endpoint's host: the store and
// this coordinator go with that one.
bool Job::others_go_on_without(const Node& leaver, int signal) const {
  if (!limits_.round.elastic || verdict_ || leaver.hello.node_id == limits_.host_node_id)
    return false;
  if (phase_ == Phase::Forming || leaver.part == Part::Idle) return true;
  // Also when fewer than MIN remain: they wait for another node, as they would if the machine had
  // died without a word. SIGTERM is a scheduler that wants the machine back; any other signal is
  // somebody who wants the job over.
  return signal == SIGTERM;
}

void Job::log(std::string text, Log::Level level) {
  actions_.push_back(Log{level, std::move(text)});
}

}  // namespace ddprun::rendezvous
