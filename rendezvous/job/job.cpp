// One verdict for all nodes: what the coordinator hears, in, and what it has to say, out. Sockets
// and timers are coordinator.cpp's.
#include "rendezvous/job/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <csignal>
#include <limits>
#include <string_view>
#include <utility>

#include "rendezvous/counted.h"
#include "rendezvous/job/admission.h"
#include "rendezvous/time_text.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::string_view no_place = "all places are taken; this node stands by as a spare";
constexpr std::string_view about_to_end =
    "the workers of some nodes are done and the job is about to end; this node stands by as a "
    "spare";

// "node 1 (host-b)", or "node host-b" before it has a rank.
std::string printed_name(const Hello& hello) {
  if (!hello.node_rank) return "node " + hello.host;
  return fmt::format("node {} ({})", *hello.node_rank, hello.host);
}

// The same with the rank that an elastic job gave it: several agents may run on one host.
std::string printed_name(const Roster::Node& node) {
  if (node.group_rank < 0) return printed_name(node.hello);
  return fmt::format("node {} ({})", node.group_rank, node.hello.host);
}

Mandate::Limits mandate_limits(const JobLimits& limits) {
  return {.coordinator = limits.host_node_id,
          .may_be_taken_over = limits.may_be_taken_over,
          .arbitration = limits.arbitration,
          .job = limits.job,
          .word_limit = limits.word_limit};
}

// SIGTERM is a scheduler that wants the machine back; any other signal is somebody who wants the
// job over. Where one node lost its session, nothing is known of the others'.
bool is_of_one_node(const FirstCause& cause) {
  return cause.signal == SIGTERM || cause.starter_gone;
}

// What its first coordinator was given counts for the whole job.
JobLimits limits_of(JobLimits limits, const Succession& last) {
  if (last.max_restarts) limits.restarts.restarts_max = *last.max_restarts;
  return limits;
}

}  // namespace

Job::Job(JobLimits limits, TimePoint now)
    : limits_(std::move(limits)),
      mandate_(mandate_limits(limits_)),
      forming_(limits_.round, now),
      next_beat_(now + limits_.heartbeat_interval),
      restarts_(limits_.restarts, limits_.restart_seed),
      newcomers_(limits_.newcomers) {}

Job::Job(JobLimits limits, const Inherited& inherited, TimePoint now)
    : Job(limits_of(std::move(limits), inherited.succession), now) {
  const Succession& last = inherited.succession;
  phase_ = Phase::Running;
  mandate_.inherit(inherited);
  started_ = now - inherited.ran;
  cause_.attempt_began(started_);
  newcomers_.runs(started_);
  restarts_.resume(last.restarts_used, last.failures_in_a_row);
  progress_ = last.progress;
  nodes_.inherit(last, limits_.heartbeat_timeout, now);
}

JobActions Job::take_over(const Inherited& inherited, TimePoint now) {
  log(fmt::format("this node coordinates the job from here on (term {})", mandate_.term()));
  if (inherited.handed_over) {
    handed_over_by_ = inherited.succession.coordinator;
    stop_all("the coordinator's node leaves after SIGTERM; the others go on", SIGTERM, now);
    return take();
  }
  // A coordinator without workers was in no round, and the round can go on without it.
  if (const Node* former = nodes_.with_id(inherited.succession.coordinator)) {
    const PeerId peer = former->peer;
    lose(peer, inherited.lost_why, now);
  } else if (nodes_.size() < static_cast<std::size_t>(inherited.succession.nodes)) {
    // But not without a member that has left: the others were told to stop, perhaps.
    stop_all("a node of the last round has left; the others go on", SIGTERM, now);
  }
  return take();
}

// ---- events ----

JobActions Job::on_message(PeerId peer, const ControlMessage& message, TimePoint now) {
  Node* node = nodes_.find(peer);
  if (node == nullptr) {
    hear_stranger(peer, message, now);
    return take();
  }
  if (std::holds_alternative<Hello>(message)) {
    put_out(peer, {.exit_status = exit_status::refused, .why = "this node said hello twice"},
            "it said hello twice", now);
    return take();
  }
  node->liveness.heard(now);
  refuse_claims(*node);
  if (phase_ == Phase::Finished) return take();
  if (const auto* up = std::get_if<Started>(&message); up && round_name(*up) == round()) {
    node->started = true;
    if (mandate_.started(node->hello.node_id)) tell_succession();
  }
  if (const auto* failed = std::get_if<WorkerFailed>(&message)) worker_failed(*node, *failed, now);
  if (const auto* done = std::get_if<WorkersSucceeded>(&message)) {
    workers_succeeded(*node, round_name(*done));
  }
  if (const auto* gone = std::get_if<Reaped>(&message)) reaped(*node, *gone, now);
  if (const auto* more = std::get_if<CanGrow>(&message)) can_grow(*node, *more, now);
  if (const auto* bye = std::get_if<Leaving>(&message)) leaving(*node, *bye, now);
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
    give_up_unready(now, late);
    if (enlarge_again_ && now >= *enlarge_again_) enlarge(now);
    if (now >= next_beat_) beat(now);
  }
  if (phase_ != Phase::Finished) obey(mandate_.on_tick(now));
  if (phase_ == Phase::Forming) try_close(now);
  return take();
}

JobActions Job::on_word(const Word& word, TimePoint now) {
  if (!mandate_.waits_for_word() || phase_ == Phase::Finished) return take();
  if (word.kind == Word::Kind::Unreached) log(word.why, Log::Level::Warning);
  const Mandate::Ruling ruling = mandate_.on_word(word);
  if (ruling.settled) tell_succession();
  obey(ruling);
  const bool leads = ruling.kind == Mandate::Ruling::Kind::Leads;
  if (leads && phase_ == Phase::Forming) try_close(now);
  return take();
}

std::optional<TimePoint> Job::next_tick() const {
  std::optional<TimePoint> next;
  if (phase_ == Phase::Finished) return next;
  const auto consider = [&](TimePoint time) { next = std::min(next.value_or(time), time); };
  if (has_heartbeats()) {
    consider(next_beat_);
    for (const Node& node : nodes_) {
      if (may_fall_silent(node)) consider(node.liveness.deadline());
    }
    if (const auto claim = claims_.next_deadline()) consider(*claim);
    if (ready_by_) consider(*ready_by_);
    if (enlarge_again_) consider(*enlarge_again_);
  }
  if (const auto word_by = mandate_.next_tick()) consider(*word_by);
  if (phase_ == Phase::Forming && forming_.look_again() && !mandate_.waits_for_word()) {
    consider(*forming_.look_again());
  }
  return next;
}

std::vector<NodeTold> Job::nodes(TimePoint now) const {
  std::vector<NodeTold> told;
  for (const Node& node : nodes_) {
    told.push_back({.peer = node.peer,
                    .host = node.hello.host,
                    .address = node.hello.address,
                    .port = node.hello.standby_port,
                    .group_rank = node.group_rank,
                    .is_own = node.hello.node_id == limits_.host_node_id,
                    .tells = node.hello.tells && !node.absent,
                    .silence = node.liveness.silence(now)});
  }
  return told;
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
  const bool comes_again = !hello.replaces.empty() && hello.run_id == limits_.run_id;
  // The vote that it gave a later coordinator would stand.
  const bool may_have_voted = hello.term > mandate_.term();
  if (comes_again && !may_have_voted) resign(hello.replaces);
  const Node* old = comes_again ? nodes_.with_id(hello.replaces) : nullptr;
  if (old != nullptr) replace(old->peer, "it was cut off, and made a new connection", now);
  if (hello.resumes && hello.run_id == limits_.run_id) return come_back(peer, hello, now);
  Admission admission = admission_of(hello, nodes_,
                                     {.run_id = limits_.run_id,
                                      .round = limits_.round,
                                      .host_node_id = limits_.host_node_id,
                                      .heartbeats = has_heartbeats(),
                                      .term = mandate_.term(),
                                      .ending = phase_ == Phase::Finished || verdict_});
  switch (admission.kind) {
    case Admission::Kind::Elsewhere:
      return send_on(peer, hello);
    case Admission::Kind::Refused:
      return refuse(peer, std::move(admission.refusal));
    case Admission::Kind::ContestsRank:
      return contest_rank(peer, hello, admission.holder, now);
    case Admission::Kind::Member:
      return let_in(peer, hello, now);
  }
}

void Job::let_in(PeerId peer, const Hello& hello, TimePoint now) {
  nodes_.add(peer, hello, Liveness(limits_.heartbeat_timeout, now));
  welcome(peer);
  if (limits_.round.nodes_max > 1) {
    log(fmt::format("{} joined with {}", printed_name(hello), counted(hello.nproc, "worker")));
  }
  if (limits_.round.elastic) forming_.came(hello.attempt);
  mandate_.attempt_seen(hello.attempt);
  if (phase_ == Phase::Forming) return try_close(now);

  // A newcomer enlarges a running elastic job, unless that job is about to end anyway.
  if (phase_ != Phase::Running) return;
  enlarge(now);
  if (phase_ != Phase::Running) return;
  const bool held = may_grow() && enlarge_again_;
  tell_spare(
      peer,
      held ? fmt::format("nodes that came before did not stay; this one stands by for {}",
                         time_text(std::chrono::duration_cast<Milliseconds>(*enlarge_again_ - now)))
           : std::string(nodes_.any(Part::Succeeded) ? about_to_end : no_place));
}

void Job::welcome(PeerId peer) {
  const auto ms = [](Milliseconds time) {
    assert(time.count() <= std::numeric_limits<int>::max());
    return static_cast<int>(time.count());
  };
  actions_.push_back(SendTo{peer, Welcome{.heartbeat_interval_ms = ms(limits_.heartbeat_interval),
                                          .heartbeat_timeout_ms = ms(limits_.heartbeat_timeout)}});
  if (limits_.may_be_taken_over && attempt() >= 0) actions_.push_back(SendTo{peer, succession()});
}

// A member of the round that this coordinator has inherited. One that knows another round has
// workers that nobody could give a place: it stops them and joins as a new node.
void Job::come_back(PeerId peer, const Hello& hello, TimePoint now) {
  if (finish_) return send_away(peer, *finish_);
  if (!mandate_.is_last_round(*hello.resumes) ||
      !nodes_.come_back(peer, hello, limits_.heartbeat_timeout, now)) {
    mandate_.attempt_seen(hello.resumes->attempt);
    // Who has made all of the job's rounds itself knows its founders, and need not believe it.
    if (hello.resumes->founder && mandate_.term() > 0) nodes_.remember_founder(hello.node_id);
    const Node* known = nodes_.with_id(hello.node_id);
    const bool is_here = known != nullptr && !known->absent;
    if (hello.node_id == limits_.host_node_id && !is_here) return join_late(peer, hello, now);
    return send_away(peer, Finish{.exit_status = exit_status::node_lost,
                                  .why = "the job goes on from another round",
                                  .may_rejoin = true});
  }
  welcome(peer);
  log(fmt::format("{} is back", printed_name(hello)));
  tell_members();
  if (stop_) actions_.push_back(SendTo{peer, *stop_});
}

// The node that leads had heard who is in the last round, and not yet that it begins. It has no
// workers there, and cannot leave in order to come anew: the job would lose its coordinator.
void Job::join_late(PeerId peer, const Hello& hello, TimePoint now) {
  if (const Node* absent = nodes_.with_id(hello.node_id)) nodes_.remove(absent->peer);
  const std::string who = printed_name(hello);
  if (phase_ == Phase::Running) {
    stop_all(fmt::format("{} was not told in time that the last round begins", who), SIGTERM, now);
  }
  let_in(peer, hello, now);
  if (hello.resumes->founder) nodes_.make_founder(*nodes_.find(peer));
  if (phase_ == Phase::Stopping) check_reaped(now);
}

// It cannot vote any more, in any round.
void Job::resign(const std::string& node_id) {
  if (mandate_.resigned(node_id)) tell_succession();
}

Succession Job::succession() const {
  Succession succession = mandate_.succession(restarts_.used());
  succession.max_restarts = limits_.restarts.restarts_max;
  succession.failures_in_a_row = restarts_.in_a_row();
  succession.progress = progress_;
  return succession;
}

void Job::tell_succession() {
  if (!limits_.may_be_taken_over) return;
  for (const Node& node : nodes_) actions_.push_back(SendTo{node.peer, succession()});
}

JobActions Job::step_down(const std::string& why) {
  if (phase_ != Phase::Finished) give_way(why);
  return take();
}

// What it rules is why nothing here says anything more: the job is over for this coordinator.
void Job::obey(const Mandate::Ruling& ruling) {
  using enum Mandate::Ruling::Kind;
  switch (ruling.kind) {
    case Leads:
      return;
    case Waits:
      if (!ruling.ask) return;
      log(ruling.why);
      actions_.push_back(AskForWord{*ruling.ask});
      return;
    case GivesWay:
      return give_way(ruling.why);
    case Ends:
      return finish(exit_status::coordinator_lost, ruling.why);
  }
}

// No verdict on the job: its nodes stop their workers, and look for where it goes on.
void Job::give_way(const std::string& why) {
  stepped_down_ = true;
  cause_.forget();  // No single loss is to blame.
  log(why, Log::Level::Warning);
  finish(exit_status::coordinator_lost, why);
  for (const Node& node : nodes_) actions_.push_back(CloseAfterSending{node.peer});
}

// Between two attempts, too: others may have left, or failed, just before.
bool Job::can_hand_over(const Node& leaver, const FirstCause& cause) const {
  const bool leads = leaver.hello.node_id == limits_.host_node_id;
  return leads && is_of_one_node(cause) && !verdict_ && attempt() >= 0 && others_can_lead();
}

// Whether enough nodes are left to train and, with the vote of the one that leaves, to choose.
bool Job::others_can_lead() const {
  const auto stays = [&](const Node& node) {
    const bool takes_part = phase_ != Phase::Running || node.part == Part::Running;
    return takes_part && !node.leaving && !node.absent;
  };
  const auto votes = [&](const std::string& id) {
    const Node* node = nodes_.with_id(id);
    return node != nullptr && stays(*node);
  };
  return std::count_if(nodes_.begin(), nodes_.end(), stays) >= limits_.round.nodes_min &&
         mandate_.can_be_handed_over(votes);
}

// Its own agent hears it, too, and goes on as any node that leaves, under the next coordinator.
void Job::hand_over(const FirstCause& cause) {
  log(fmt::format("{}; this node hands the job over to the others", describe(cause)));
  tell_succession();  // With the restarts that were used since the round began.
  stepped_down_ = true;
  phase_ = Phase::Finished;
  for (const Node& node : nodes_) send_away(node.peer, HandOver{});
}

bool Job::may_grow() const {
  return limits_.round.elastic && nodes_.has_place(limits_.round.nodes_max);
}

// Takes in those that stand by, if there is a place and no pause (newcomers.h). Agents of the first
// attempt that were cut off need not wait.
void Job::enlarge(TimePoint now) {
  enlarge_again_.reset();
  if (phase_ != Phase::Running || !may_grow()) return;
  const auto pause = newcomers_.pause_ends(now);
  const Node* first = nullptr;
  for (Node& node : nodes_) {
    if (node.part != Part::Idle || node.leaving) continue;
    if (came_later(node) && pause) {
      enlarge_again_ = pause;
      continue;
    }
    node.taken_in = true;
    if (first == nullptr) first = &node;
  }
  if (first == nullptr) return;
  enlarge_again_.reset();
  stop_all(fmt::format("node {} joined, the job goes on with it", first->hello.host), SIGTERM, now);
}

// It has been in a later term of this job, which this coordinator knows nothing of: a launcher that
// was started again at the endpoint has begun another one. That term's coordinator may only be out
// of sight.
void Job::send_on(PeerId peer, const Hello& hello) {
  actions_.push_back(
      Log{Log::Level::Warning,
          fmt::format("{} was in term {} of this job, and this node coordinates term "
                      "{}: it has to find that one",
                      printed_name(hello), hello.term, mandate_.term()),
          peer});
  send_away(peer, Moved{});
}

// Until the answer which of the two agents of its host it is that has the rank. The newcomer hears
// so at once: one that gets no answer looks elsewhere for the job, and ends for want of it in place
// of for the rank.
void Job::contest_rank(PeerId peer, const Hello& hello, PeerId holder, TimePoint now) {
  actions_.push_back(
      Log{Log::Level::Info,
          fmt::format("{} is here a second time; the first one, at {}, has {} to answer",
                      printed_name(hello), nodes_.find(holder)->hello.from,
                      time_text(2 * limits_.heartbeat_interval)),
          peer});
  claims_.add({peer, hello, holder, now + 2 * limits_.heartbeat_interval});
  tell_spare(peer,
             fmt::format("another agent of {} has --node-rank {}; it has {} to answer", hello.host,
                         hello.node_rank.value_or(-1), time_text(2 * limits_.heartbeat_interval)));
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
    if (nodes_.find(claim->holder) != nullptr) {
      replace(claim->holder, "it fell silent, and its host has started another agent", now);
    }
    admit(claim->newcomer, claim->hello, now);
  }
}

// Takes `old` for lost although its time-out has not passed.
void Job::replace(PeerId old, const std::string& why, TimePoint now) {
  actions_.push_back(CloseAfterSending{old});
  lose(old, why, now);
}

void Job::refuse(PeerId peer, Refusal refusal) {
  actions_.push_back(Log{Log::Level::Warning, std::move(refusal.logged), peer});
  send_away(peer, Refused{.reason = std::move(refusal.told), .exit_status = refusal.exit_status});
}

// ---- what nodes say ----

// What a node says of itself is completed by what the round knows of it.
FirstCause Job::placed(const Node& node, FirstCause cause) const {
  cause.host = node.hello.host;
  cause.node_rank = node.group_rank;
  cause.attempt = attempt();
  return cause;
}

void Job::worker_failed(Node& node, const WorkerFailed& message, TimePoint now) {
  if (round_name(message) != round() || node.part != Part::Running) return;
  FirstCause cause = placed(node, message.cause);
  if (cause.of_a_peer && nodes_.any(Part::Succeeded)) advise_on_early_end(cause);
  const bool settled = !came_later(node) || newcomers_.settled(node.member_since, now);
  const bool asks = asks_to_be_queued_again(cause);
  if (phase_ == Phase::Stopping) {
    // All workers ask for it at the same step, and the first one heard may have been a newcomer's.
    // Otherwise it is an echo of the stop: workers tell each other, and end with that before an
    // agent that hears of it late knows why.
    if (settled && asks && asked_again_ == AskedAgain::Newcomer) {
      cause_.ended_by(cause, now);
      asked_again_ = AskedAgain::Member;
    }
    return consider_earlier(cause, now);
  }
  if (phase_ != Phase::Running) return;
  if (asks) asked_again_ = settled ? AskedAgain::Member : AskedAgain::Newcomer;
  if (!settled) {
    const std::string why = describe(cause);
    return put_out(node.peer, {exit_status_of(cause), why, cause, cause.retriable}, why, now);
  }
  if (asks && limits_.round.elastic && nodes_.size() > 1) return stop_for_member(cause, now);
  fail_attempt(cause, SIGTERM, now);
}

// A node that leaves may have stopped its workers, and they all others, before its goodbye is here.
// It says that before its workers are reaped, so check_reaped() knows.
void Job::stop_for_member(const FirstCause& cause, TimePoint now) {
  cause_.ended_by(cause, now);
  stop_all(describe(cause) + "; the job ends, unless a node that leaves is the reason", SIGTERM,
           now);
}

void Job::consider_earlier(FirstCause cause, TimePoint now) {
  // Its peers end because of it, and one of another node may be heard first. The next attempt would
  // do what this one refused.
  if (!verdict_ && shows_a_wrong_command(cause)) {
    log(fmt::format("{}: what it was given is wrong, and no other attempt is made",
                    describe(cause)),
        Log::Level::Warning);
    verdict_ = exit_status_of(cause);
    cause_.ended_by(std::move(cause), now);
    return;
  }
  if (!cause_.heard_of(std::move(cause), now)) return;
  log(fmt::format("the first error was another one: {}", describe(*cause_.get())),
      Log::Level::Warning);
}

void Job::advise_on_early_end(FirstCause& cause) const {
  std::string who;
  int more = -1;
  for (const Node& node : nodes_) {
    if (node.part == Part::Succeeded && ++more == 0) who = "the workers of " + printed_name(node);
  }
  if (more > 0) who += fmt::format(" and {} more", counted(more, "node"));
  cause.advice = advice_on_early_end(who);
}

void Job::workers_succeeded(Node& node, RoundName of) {
  if (of != round() || node.part != Part::Running) return;
  node.part = Part::Succeeded;
  if (phase_ == Phase::Running) check_succeeded();
}

void Job::reaped(Node& node, const Reaped& message, TimePoint now) {
  if (round_name(message) != round() || node.part == Part::Idle) return;
  if (phase_ == Phase::Stopping && message.cause)
    consider_earlier(placed(node, *message.cause), now);
  node.part = Part::Reaped;
  if (message.nproc > 0) node.hello.nproc = message.nproc;
  if (phase_ == Phase::Running && round().term < mandate_.term()) {
    // This coordinator has not told it to stop, so the one before has.
    return stop_all(
        fmt::format("{} was told to stop under the last coordinator", printed_name(node)), SIGTERM,
        now);
  }
  if (phase_ == Phase::Stopping) check_reaped(now);
}

// Not once a node is done: the others are about to be, and all would have to begin again.
void Job::can_grow(const Node& node, const CanGrow& message, TimePoint now) {
  if (phase_ != Phase::Running || round_name(message) != round()) return;
  if (node.part != Part::Running || nodes_.any(Part::Succeeded)) return;
  if (message.nproc <= node.hello.nproc) return;
  stop_all(fmt::format("{} has replaced what it had lost; the job goes on with {} there in place "
                       "of {}",
                       printed_name(node), counted(message.nproc, "worker"), node.hello.nproc),
           SIGTERM, now);
}

// The launcher of `node` got a signal. That ends the job everywhere, except that an elastic job
// goes on without a node that was preempted, or waits for another one in its place. So does one
// whose node is not fit for it.
void Job::leaving(Node& node, const Leaving& message, TimePoint now) {
  if (node.leaving) return;
  node.leaving = true;
  const int signal = message.signal;
  const FirstCause cause{.kind = FirstCause::Kind::Interrupted,
                         .host = node.hello.host,
                         .node_rank = node.group_rank,
                         .pid = node.hello.pid,
                         .signal = signal,
                         .retriable = false,
                         .attempt = std::max(attempt(), 0),
                         .message = message.unfit,
                         .starter_gone = message.starter_gone};
  if (is_of_unfit_node(cause)) log(describe(cause), Log::Level::Warning);
  if (others_go_on_without(node, cause)) {
    count_departure(node, now);
    forming_.went(is_of_unfit_node(cause) || cause.starter_gone
                      ? describe(cause)
                      : fmt::format("{} left after {}", printed_name(node), signal_name(signal)));
    if (phase_ == Phase::Running && node.part == Part::Running) {
      if (came_later(node)) return go_on_without_newcomer(describe(cause), now);
      return stop_all(fmt::format("{}; the others go on", describe(cause)), SIGTERM, now);
    }
    if (phase_ == Phase::Stopping) {  // check_reaped() says goodbye to it.
      if (node.has_workers()) asked_again_ = AskedAgain::Nobody;  // Those echoed its workers' stop.
      return;
    }
    actions_.push_back(SendTo{node.peer, Finish{exit_status_of(cause), describe(cause), cause}});
    if (phase_ == Phase::Forming) try_close(now);
    return;
  }
  if (can_hand_over(node, cause)) {
    if (phase_ != Phase::Stopping) return hand_over(cause);
    if (node.has_workers()) asked_again_ = AskedAgain::Nobody;  // As of a node that leaves a job.
    hands_over_ = cause;  // Once all are reaped: those that leave as well hear first that they may.
    return;
  }
  if (phase_ == Phase::Running) return fail_attempt(cause, signal, now);
  if (!verdict_) cause_.ended_by(cause, now);
  if (!verdict_) verdict_ = exit_status_of(cause);
  if (phase_ == Phase::Forming) finish(*verdict_, describe(cause));
}

void Job::lose(PeerId peer, const std::string& why, TimePoint now) {
  if (Node* node = nodes_.find(peer)) count_departure(*node, now);
  const auto removed = nodes_.remove(peer);
  if (!removed) return;
  const Node& lost = *removed;
  if (lost.part != Part::Idle) tell_members();
  if (phase_ == Phase::Finished) return;
  if (!lost.leaving) {
    log(fmt::format("lost {}: {}", printed_name(lost.hello), why), Log::Level::Warning);
    forming_.went(fmt::format("{} was lost", printed_name(lost)));
    obey(mandate_.after_loss(is_here(), now));
    if (phase_ == Phase::Finished) return;
  } else {
    resign(lost.hello.node_id);
  }
  if (phase_ == Phase::Forming) return try_close(now);
  if (phase_ == Phase::Stopping) return check_reaped(now);
  if (lost.part != Part::Running) return;  // It had nothing left to do.
  if (came_later(lost)) {
    return go_on_without_newcomer(
        fmt::format("{}, which had come later, was lost: {}", printed_name(lost.hello), why), now);
  }
  fail_attempt({.kind = FirstCause::Kind::NodeLost,
                .host = lost.hello.host,
                .node_rank = lost.group_rank,
                .attempt = attempt(),
                .message = why,
                .advice = advice_on_lost_node(limits_.restarts.restarts_max > 0)},
               SIGTERM, now);
}

void Job::count_departure(Node& node, TimePoint now) {
  if (!came_later(node) || !node.taken_in || node.departed) return;
  node.departed = true;
  newcomers_.went(now);
}

// Takes nothing from the budget: what came later was not what the job was started with.
void Job::go_on_without_newcomer(const std::string& what, TimePoint now) {
  const auto ran = std::chrono::duration_cast<Milliseconds>(now - started_);
  const Milliseconds delay = restarts_.on_departure(ran, progressed_);
  if (delay.count() > 0) forming_.wait_until(now + delay);
  const std::string when = delay.count() == 0 ? "" : " in " + time_text(delay);
  stop_all(fmt::format("{}; the others go on{}", what, when), SIGTERM, now);
}

// Counts it as lost, and tells it why, should it listen. In this order, because its loss decides
// whether there is an attempt that it could come back to.
void Job::put_out(PeerId peer, Finish finish, const std::string& why, TimePoint now) {
  lose(peer, why, now);
  const bool over = verdict_ || (phase_ == Phase::Finished && !stepped_down_);
  finish.may_rejoin = finish.may_rejoin && !over;
  send_away(peer, std::move(finish));
  admit_claims(peer, now);
}

// Alive, but silent about its workers. A coordinator that slept has not listened itself, and gives
// everybody the time again.
void Job::give_up_unready(TimePoint now, TimePoint::duration late) {
  if (!ready_by_ || now < *ready_by_) return;
  const bool starting = phase_ == Phase::Running;
  const Milliseconds limit = starting ? limits_.start_timeout : limits_.stop_timeout;
  ready_by_.reset();
  if (late > limit / 2) {
    ready_by_ = now + limit;
    return;
  }
  std::vector<PeerId> unready;
  for (const Node& node : nodes_) {
    // Its own agent needs no limit: if that hangs, so does this.
    if (node.hello.node_id == limits_.host_node_id) continue;
    const bool waited_for = starting ? node.part == Part::Running && !node.started
                                     : phase_ == Phase::Stopping && node.has_workers();
    if (waited_for) unready.push_back(node.peer);
  }
  const std::string why = fmt::format("it did not say within {} that its workers {}",
                                      time_text(limit), starting ? "have started" : "are gone");
  for (const PeerId peer : unready) count_as_lost(peer, why, now);
}

void Job::beat(TimePoint now) {
  next_beat_ = now + limits_.heartbeat_interval;
  for (const Node& node : nodes_) actions_.push_back(SendTo{node.peer, Heartbeat{}});
}

// Its own agent lives in this thread: a silence of that is this one's. To blame it would end a
// coordinator that wakes up as a lost node, whatever it had decided. Unless it never came to this
// coordinator, because it is about to end.
bool Job::may_fall_silent(const Node& node) const {
  return node.absent || node.hello.node_id != limits_.host_node_id;
}

void Job::give_up_silent(TimePoint now, TimePoint::duration late) {
  // Collected first, since lose() takes them out of nodes_.
  std::vector<PeerId> silent;
  for (Node& node : nodes_) {
    if (!may_fall_silent(node)) continue;
    if (node.liveness.silent(now, late)) silent.push_back(node.peer);
  }
  for (const PeerId peer : silent) {
    const std::string why =
        fmt::format("nothing heard from it for {}", time_text(limits_.heartbeat_timeout));
    count_as_lost(peer, why, now);
  }
}

// Should it only have been asleep, this tells it that the others have gone on without it. One that
// is out already, because of another's loss, is not found.
void Job::count_as_lost(PeerId peer, const std::string& why, TimePoint now) {
  if (nodes_.find(peer) == nullptr) return;
  put_out(peer,
          {.exit_status = exit_status::node_lost,
           .why = "this node counts as lost: " + why,
           .may_rejoin = true},
          why, now);
}

// ---- rounds ----

void Job::try_close(TimePoint now) {
  const std::vector<std::size_t> present = taking_part(now);
  const auto decision = forming_.look(round_nodes(present), now);
  if (!decision) return;
  if (decision->kind == RoundDecision::Kind::Close) {
    const Mandate::Ruling ruling = mandate_.before_round(is_here(), now);
    obey(ruling);
    if (ruling.kind != Mandate::Ruling::Kind::Leads) return;
  }
  switch (decision->kind) {
    case RoundDecision::Kind::Wait:
      if (forming_.has_news(*decision, now)) tell_waiting(*decision);
      return;
    case RoundDecision::Kind::Close:
      return start_round(*decision, present, now);
    case RoundDecision::Kind::TimedOut:
      return finish(has_begun() ? exit_status::preempted : exit_status::rendezvous_timeout,
                    decision->reason);
  }
}

void Job::start_round(const RoundDecision& decision, const std::vector<std::size_t>& present,
                      TimePoint now) {
  phase_ = Phase::Running;
  if (attempt() < 0) {
    for (const Place& place : decision.members) nodes_.make_founder(nodes_[present[place.node]]);
  }
  mandate_.round_closed(council_of(decision, present), static_cast<int>(decision.members.size()));
  started_ = now;
  newcomers_.runs(now);
  stop_.reset();
  asked_again_ = AskedAgain::Nobody;
  ready_by_ = now + limits_.start_timeout;
  cause_.attempt_began(now);
  progressed_ = false;
  // Before any RoundStart: the first worker may be at the store before the last agent has heard.
  actions_.push_back(StartAttempt{round()});
  nodes_.attempt_begins();
  for (const Place& place : decision.members) {
    nodes_[present[place.node]].part = Part::Running;
  }
  tell_members();
  tell_succession();  // Before any worker starts: a node that has workers knows who may take over.
  for (const Place& place : decision.members) {
    Node& node = nodes_[present[place.node]];
    node.group_rank = place.group_rank;
    node.taken_in = true;
    if (!node.member_since) node.member_since = now;
    actions_.push_back(
        SendTo{node.peer, RoundStart{.attempt = attempt(),
                                     .term = round().term,
                                     .max_restarts = limits_.restarts.restarts_max,
                                     .group_rank = place.group_rank,
                                     .group_world_size = static_cast<int>(decision.members.size()),
                                     .rank_base = place.rank_base,
                                     .nproc = node.hello.nproc,
                                     .world_size = place.world_size,
                                     .role_rank_base = place.role_rank_base,
                                     .role_world_size = place.role_world_size,
                                     .master_addr = limits_.master_addr,
                                     .master_port = limits_.master_port,
                                     .founder = node.founder,
                                     .coordinator = limits_.host_node_id,
                                     .restarts_used = restarts_.used()}});
  }
  for (Node& node : nodes_) {
    if (node.part != Part::Idle || node.hello.node_id == handed_over_by_) continue;
    node.taken_in = false;  // Nobody stops when it goes, so that newcomers need not wait for it.
    tell_spare(node.peer, std::string(no_place));
  }
  enlarge_again_ = newcomers_.pause_ends(now);
}

Council Job::council_of(const RoundDecision& decision,
                        const std::vector<std::size_t>& present) const {
  Council council;
  for (const Place& place : decision.members) {
    const Node& node = nodes_[present[place.node]];
    const Hello& hello = node.hello;
    if (hello.standby_port == 0 || council.size() == council_max) continue;
    council.push_back({.node_id = hello.node_id,
                       .group_rank = place.group_rank,
                       .host = hello.host,
                       .address = hello.address,
                       .port = hello.standby_port,
                       .founder = node.founder});
  }
  return council;
}

// A spare has no workers that could need the store; who is lost has none any more.
void Job::tell_members() { actions_.push_back(Members{nodes_.members()}); }

void Job::tell_spare(PeerId peer, const std::string& text) {
  actions_.push_back(SendTo{peer, Waiting{.joined = static_cast<int>(nodes_.size()),
                                          .wanted = limits_.round.nodes_max,
                                          .text = text}});
}

void Job::tell_waiting(const RoundDecision& decision) {
  for (const Node& node : nodes_) {
    actions_.push_back(SendTo{
        node.peer,
        Waiting{.joined = decision.joined, .wanted = decision.wanted, .text = decision.reason}});
  }
}

// ---- verdicts ----

void Job::fail_attempt(const FirstCause& cause, int signal, TimePoint now) {
  cause_.ended_by(cause, now);
  const auto ran = std::chrono::duration_cast<Milliseconds>(now - started_);
  const RestartDecision next = restarts_.on_failure(cause, ran, progressed_);
  if (!next.restart) verdict_ = exit_status_of(cause);
  if (next.delay.count() > 0) forming_.wait_until(now + next.delay);
  stop_all(fmt::format("{}; {}", describe(cause), next.reason), signal, now);
}

void Job::stop_all(std::string why, int signal, TimePoint now) {
  phase_ = Phase::Stopping;
  newcomers_.stands(now);
  ready_by_ = now + limits_.stop_timeout;
  enlarge_again_.reset();
  stop_ = Stop{.attempt = attempt(),
               .signal = signal,
               .why = std::move(why),
               .final_verdict = verdict_.has_value(),
               .exit_status = verdict_.value_or(0),
               .cause = cause_.get(),
               .term = round().term};
  for (const Node& node : nodes_) {
    if (node.has_workers()) actions_.push_back(SendTo{node.peer, *stop_});
  }
  check_reaped(now);
}

// There is no limit on how long a node may take to succeed: it is alive, or it would be lost.
void Job::check_succeeded() {
  if (!nodes_.any(Part::Running)) finish(0, "all workers succeeded");
}

// No attempt begins before every node has said that its workers are gone: an old one that still
// holds a GPU or a port would take the new one down with it.
void Job::check_reaped(TimePoint now) {
  if (nodes_.any_has_workers()) return;
  if (!verdict_ && asked_again_ == AskedAgain::Member) verdict_ = exit_status::preempted;
  if (!verdict_ && hands_over_ && !others_can_lead()) {
    cause_.ended_by(*hands_over_, now);
    verdict_ = exit_status_of(*hands_over_);
  }
  if (verdict_)
    return finish(*verdict_, cause_.get() ? describe(*cause_.get()) : "the job was stopped");

  // A node that leaves while the others go on has its own end.
  for (const Node& node : nodes_) {
    if (!node.leaving || (hands_over_ && node.hello.node_id == limits_.host_node_id)) continue;
    actions_.push_back(SendTo{node.peer, Finish{.exit_status = exit_status::preempted,
                                                .why = "this node was preempted"}});
  }
  if (hands_over_) return hand_over(*hands_over_);
  phase_ = Phase::Forming;
  ready_by_.reset();
  forming_.reopen(now);
  try_close(now);
}

void Job::finish(int exit_status, const std::string& why) {
  phase_ = Phase::Finished;
  finish_ = Finish{exit_status, why, cause_.get(), stepped_down_};
  for (const Node& node : nodes_) actions_.push_back(SendTo{node.peer, *finish_});
}

// ---- helpers ----

// Indices of nodes_. Newcomers stand by during a pause, unless the job would stand still without
// them.
std::vector<std::size_t> Job::taking_part(TimePoint now) const {
  const bool pause = attempt() >= 0 && newcomers_.pause_ends(now);
  std::vector<std::size_t> all, belonging;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].leaving || nodes_[i].hello.node_id == handed_over_by_) continue;
    all.push_back(i);
    if (!came_later(nodes_[i]) || newcomers_.settled(nodes_[i].member_since, now)) {
      belonging.push_back(i);
    }
  }
  const bool enough = belonging.size() >= static_cast<std::size_t>(limits_.round.nodes_min);
  return pause && enough ? belonging : all;
}

std::vector<RoundNode> Job::round_nodes(const std::vector<std::size_t>& present) const {
  std::vector<RoundNode> nodes;
  nodes.reserve(present.size());
  for (const std::size_t i : present) {
    const Node& node = nodes_[i];
    nodes.push_back({.host = node.hello.host,
                     .node_rank = node.hello.node_rank,
                     .nproc = node.hello.nproc,
                     .role = node.hello.role,
                     .hosts_endpoint = node.hello.node_id == limits_.host_node_id});
  }
  return nodes;
}

// Whether an elastic job has no need of `leaver`. It must not be the endpoint's host: the store and
// this coordinator go with that one.
bool Job::others_go_on_without(const Node& leaver, const FirstCause& cause) const {
  if (!limits_.round.elastic || verdict_ || leaver.hello.node_id == limits_.host_node_id)
    return false;
  if (phase_ == Phase::Forming || leaver.part == Part::Idle || came_later(leaver)) return true;
  // Also when fewer than MIN remain: they wait for another node, as they would if the machine had
  // died without a word.
  return is_of_one_node(cause);
}

void Job::send_away(PeerId peer, ControlMessage last) {
  actions_.push_back(SendTo{peer, std::move(last)});
  actions_.push_back(CloseAfterSending{peer});
}

void Job::log(std::string text, Log::Level level) {
  actions_.push_back(Log{level, std::move(text)});
}

}  // namespace ddprun::rendezvous
