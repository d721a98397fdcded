// One function for each thing that the coordinator hears; job_rounds.cpp has what follows.
#include "rendezvous/job/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/counted.h"
#include "rendezvous/time_text.h"

namespace ddprun::rendezvous {
namespace {

// "node 1 (host-b)", or "node host-b" before it has a rank.
std::string printed_name(const Hello& hello) {
  if (!hello.node_rank) return "node " + hello.host;
  return fmt::format("node {} ({})", *hello.node_rank, hello.host);
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
  if (const auto* hello = std::get_if<Hello>(&message)) {
    if (node == nullptr) {
      admit(peer, *hello, now);
    } else {
      log(fmt::format("node {} said hello twice", node->hello.host), Log::Level::Warning);
    }
    return take();
  }
  if (node == nullptr) {
    if (phase_ != Phase::Finished) refuse(peer, "the first message must be hello");
    return take();
  }
  node->liveness.heard(now);
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
  lose(peer, why, now);
  return take();
}

JobActions Job::on_tick(TimePoint now) {
  if (has_heartbeats()) {
    give_up_silent(now, now - next_tick().value_or(now));
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
  }
  if (phase_ == Phase::Forming && look_again_) consider(*look_again_);
  return next;
}

// ---- nodes come ----

void Job::admit(PeerId peer, const Hello& hello, TimePoint now) {
  if (phase_ == Phase::Finished || verdict_) return refuse(peer, "this job is ending");
  const auto same_id = [&](const Node& node) { return node.hello.node_id == hello.node_id; };
  if (std::any_of(nodes_.begin(), nodes_.end(), same_id)) {
    return refuse(peer, "an agent with this node_id is already here");
  }
  std::vector<RoundNode> present;
  for (const Node& node : nodes_) {
    present.push_back({.host = node.hello.host, .node_rank = node.hello.node_rank});
  }
  if (auto reason = check_hello(hello, limits_.run_id, limits_.round, present)) {
    return refuse(peer, std::move(*reason));
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

void Job::refuse(PeerId peer, std::string reason) {
  log(fmt::format("refused a connection: {}", reason), Log::Level::Warning);
  actions_.push_back(SendTo{peer, Refused{.reason = std::move(reason)}});
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
// goes on without a node that was preempted.
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
                                           .why = "this node counts as lost: " + why}});
    actions_.push_back(CloseAfterSending{peer});
    lose(peer, why, now);
  }
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
  return signal == SIGTERM &&
         static_cast<int>(round_state().nodes.size()) >= limits_.round.nodes_min;
}

void Job::log(std::string text, Log::Level level) {
  actions_.push_back(Log{level, std::move(text)});
}

}  // namespace ddprun::rendezvous
