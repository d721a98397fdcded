// The order of things at both ends. Keys come before the port, and the port before the connection,
// which on the endpoint's node goes to itself; at the end the endpoint goes last, since other nodes
// may not have read the verdict yet, and their workers' store is ours.
#include "launcher/membership/membership.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <exception>
#include <utility>
#include <variant>

#include "launcher/machine/local_addresses.h"
#include "launcher/membership/job_key.h"
#include "launcher/options/endpoint_options.h"
#include "rendezvous/control/resolve.h"
#include "rendezvous/control/vote_question.h"
#include "rendezvous/random_id.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds meet_again{250};       // In etcd, for a coordinator.
constexpr milliseconds resolve_again{1'000};  // A name that does not resolve yet.
constexpr milliseconds say_again{10'000};     // That it does not.

milliseconds all_notice(const LaunchOptions& options) {
  return options.heartbeat_timeout + options.heartbeat_interval;
}

milliseconds election_limit(const LaunchOptions& options) {
  return 2 * all_notice(options) + std::chrono::seconds(5);
}

SearchLimits search_limits(const LaunchOptions& options) {
  return {.join_timeout = options.join_timeout,
          .election_limit = election_limit(options),
          .heartbeat_timeout = options.heartbeat_timeout,
          .may_be_taken_over = may_be_taken_over(options),
          .meets_elsewhere = meets_in_etcd(options)};
}

void say_if_left_behind(const std::string& why) {
  if (!why.empty()) spdlog::warn("the job's files are still there: {}", why);
}

std::string what_of(const std::exception_ptr& failed) {
  try {
    std::rethrow_exception(failed);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

Membership::Membership(asio::io_context& io, const LaunchOptions& options, std::string host_name,
                       MembershipCallbacks callbacks)
    : io_(io),
      options_(options),
      callbacks_(std::move(callbacks)),
      host_name_(std::move(host_name)),
      arbiter_(io, options, on_arbiter()),
      search_(search_limits(options), rendezvous::random_id(8)),
      retry_(io) {}

asio::awaitable<void> Membership::join() {
  JobKeys keys = open_job_keys(options_);
  tls_ = std::move(keys.control);
  store_key_ = std::move(keys.store);
  callbacks_.on_worker_key(std::move(keys.workers));

  search_.begins(Clock::now());  // One time for all: the endpoint's name, etcd, the connection.
  if (meets_in_etcd(options_)) {
    make_meeting_place();
  } else {
    if (!co_await plan_endpoint_here()) co_return;
  }
  if (may_be_taken_over(options_)) {
    make_successor(election_limit(options_));
    if (arbitration_of(options_) != rendezvous::Arbitration::None) arbiter_.open();
  }
  if (meeting_) {
    if (!co_await meet()) co_return;
  } else if (plan_.role != EndpointPlan::Role::Join) {
    co_await open_endpoint();
  }
  if (!left_) enter();
}

void Membership::enter() {
  if (successor_ && !endpoint_) open_standby();
  // Itself it reaches at once, and the others have their own time to come.
  if (endpoint_) search_.begins(Clock::now());
  connect();
}

EndpointFacts Membership::own_facts() const {
  return {.addresses = {},
          .own_host_name = host_name_,
          .own_addresses = own_addresses(),
          .is_local = is_local_address};
}

// False: the join timeout is over, as has been said, or this node leaves.
asio::awaitable<bool> Membership::plan_endpoint_here() {
  EndpointFacts facts = own_facts();
  if (needs_addresses(options_) && !co_await look_up_endpoint(facts)) co_return false;
  plan_ = plan_endpoint(options_, facts);
  if (!plan_.warning.empty()) spdlog::warn("{}", plan_.warning);
  co_return true;
}

// Name servers may learn of this host only after it has started, as Kubernetes' do of a pod, and of
// no other host's coming at all.
asio::awaitable<bool> Membership::look_up_endpoint(EndpointFacts& facts) {
  auto next_word = Clock::now();
  while (true) {
    rendezvous::Resolved resolved = co_await rendezvous::resolve(options_.endpoint_host);
    if (left_) co_return false;  // A name server may be slow, and a signal came.
    facts.addresses = std::move(resolved.addresses);
    if (!waits_for_name(options_, facts)) co_return true;
    const auto now = Clock::now();
    const std::string why = fmt::format(
        "cannot resolve \"{}\", where a node hosts the endpoint: {}; give an address or a name "
        "that all nodes can resolve",
        options_.endpoint_host, resolved.error);
    if (search_.is_over(now)) {
      callbacks_.on_unreachable(why);
      co_return false;
    }
    if (now >= next_word) {
      spdlog::warn("{}; looking again for {}", why, rendezvous::time_text(search_.patience(now)));
      next_word = now + say_again;
    }
    retry_.expires_after(resolve_again);
    asio::error_code ignored;
    co_await retry_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    if (left_) co_return false;
  }
}

asio::awaitable<void> Membership::open_endpoint() {
  const std::string why = co_await arbiter_.found();
  if (left_) co_return;
  if (!why.empty()) throw EndpointError(why);
  endpoint_ = EndpointHost::open(io_, options_, plan_, search_.node_id(), arbiter_.job(), tls_,
                                 store_key_, others());
  if (!endpoint_) co_await arbiter_.leave_to_another();
  if (endpoint_ && successor_) successor_->leads();
  if (endpoint_) callbacks_.on_endpoint_opened(plan_.bind_address, endpoint_->port());
}

// Whether the plan to join another node may still turn out wrong: name servers tell for a while of
// the host that had the name before. Not once somebody has answered: then there is a job.
bool Membership::may_host_yet() const {
  return plan_.role == EndpointPlan::Role::Join && needs_addresses(options_) &&
         !rendezvous::is_address(options_.endpoint_host) && !answered_ && !search_.coordinator();
}

bool Membership::turns_host(const std::vector<std::string>& addresses) {
  EndpointFacts facts = own_facts();
  facts.addresses = addresses;
  const EndpointPlan plan = plan_endpoint(options_, facts);
  if (left_ || plan.role == EndpointPlan::Role::Join) return false;
  spdlog::info("{} is this machine by now: opening the endpoint here", options_.endpoint_host);
  plan_ = plan;
  soon([this] { open_late(); });
  return true;
}

void Membership::open_late() {
  client_.reset();
  standby_.reset();
  asio::co_spawn(
      io_, [this] { return open_endpoint(); },
      [this, weak = std::weak_ptr(alive_)](const std::exception_ptr& failed) {
        if (!weak.lock() || left_) return;
        if (!failed) return enter();
        callbacks_.on_unreachable(what_of(failed));
      });
}

// What other agents may ask, in any state of this one.
EndpointHost::OnOthers Membership::others() {
  const auto on_query = [this](const rendezvous::Query& query,
                               std::function<void(const std::string&)> reply) {
    if (callbacks_.on_query) callbacks_.on_query(query, std::move(reply));
  };
  if (!successor_) {
    EndpointHost::OnOthers none;
    none.on_query = on_query;
    return none;
  }
  return {
      .on_ask =
          [this](const rendezvous::AskVote& ask) {
            // It led, and does not yet know who does.
            if (endpoint_ && !leads()) return rendezvous::Vote{};
            return successor_->on_ask(ask);
          },
      .on_leads = [this](const rendezvous::Leads& leads) { return on_leads(leads); },
      .where =
          [this] { return rendezvous::Moved{search_.coordinator().value_or(rendezvous::Seat{})}; },
      .on_word_wanted = [this](const rendezvous::WordWish& wish) { on_word_wanted(wish); },
      .on_query = on_query};
}

// What stands in the way of a takeover is no reason not to train: it is said, and this node can
// only follow.
void Membership::open_standby() {
  standby_plan_ = plan_standby(options_);
  try {
    standby_ = EndpointHost::open_standby(io_, options_, standby_plan_, tls_, store_key_, others());
  } catch (const EndpointError& error) {
    spdlog::warn("this node could not take over if the endpoint's host is lost: {}", error.what());
  }
}

void Membership::make_successor(milliseconds give_up) {
  rendezvous::TakeoverLimits limits;
  limits.all_notice = all_notice(options_);
  limits.give_up = give_up;
  limits.arbitration = arbitration_of(options_);
  limits.ask_arbiter_after = options_.heartbeat_interval;
  limits.arbiter_give_up = limits.give_up + word_limit(options_);
  successor_ = std::make_unique<Successor>(
      io_, options_.run_id, search_.node_id(), limits, tls_,
      SuccessorCallbacks{
          .on_lead = [this](const rendezvous::Lead& elected) { lead(elected); },
          .on_follow = [this](const rendezvous::Seat& coordinator) { follow(coordinator); },
          .on_give_up =
              [this](const rendezvous::GiveUp& end) {
                if (!left_) carry_out(search_.gives_up(end));
              },
          .on_word_wanted =
              [this](const std::optional<rendezvous::WordWish>& wish) {
                if (wish) {
                  on_word_wanted(*wish);
                } else {
                  arbiter_.drop();
                }
              }});
}

// ---- the meeting in etcd ----

void Membership::make_meeting_place() {
  MeetingLimits limits;
  limits.interval = options_.heartbeat_interval;
  // A takeover is over before newcomers take the job for one that has ended.
  const auto lasts =
      std::chrono::ceil<std::chrono::seconds>(election_limit(options_) + word_limit(options_));
  meeting_ = std::make_unique<MeetingPlace>(
      io_,
      std::make_shared<rendezvous::EtcdMeeting>(options_.etcd, options_.run_id, etcd_name(options_),
                                                limits.answer / 4, lasts),
      etcd_name(options_), limits);
}

// False: the join timeout is over, as has been said, or this node leaves.
asio::awaitable<bool> Membership::meet() {
  asio::steady_timer timer(io_);
  std::string said;
  const int search = searches_;  // It may hear of the coordinator otherwise, and another one begin.
  while (!left_ && search == searches_) {
    MeetingPlace::Seen seen;
    co_await answer_to(io_, [this, &seen](const CallsInTurn::Done& done) {
      meeting_->look([&seen, done](const MeetingPlace::Seen& what) {
        seen = what;
        done(what.why);
      });
    });
    if (left_ || search != searches_) co_return false;
    const auto decided = seen.why.empty() ? rendezvous::decide_meeting(
                                                seen.leader, search_.node_id(), search_.is_new())
                                          : rendezvous::Meeting::LookAgain;
    if (decided == rendezvous::Meeting::Follow) {
      search_.found(seen.leader->seat);
      co_return true;
    }
    if (decided == rendezvous::Meeting::Lead && co_await lead_first(seen.local_address)) {
      co_return true;
    }
    if (left_) co_return false;
    if (search_.is_over(Clock::now())) {
      if (seen.why.empty())
        seen.why = etcd_name(options_) + " names no node that coordinates the job";
      callbacks_.on_unreachable(seen.why);
      co_return false;
    }
    if (!seen.why.empty() && said != seen.why) spdlog::warn("{}; asking again", seen.why);
    said = seen.why;
    timer.expires_after(meet_again);
    asio::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  co_return false;
}

// False: another node was faster, or etcd cannot say.
asio::awaitable<bool> Membership::lead_first(const std::string& address) {
  plan_ = plan_standby(options_);
  plan_.master_addr = options_.local_addr.empty() ? address : options_.local_addr;
  // Without a port yet: only who leads opens one, and founds the job.
  const rendezvous::Leader self{.seat = {search_.node_id(), 0, host_name_, plan_.master_addr, 0},
                                .term = 0};
  bool put = false;
  co_await answer_to(io_, [this, &self, &put](const CallsInTurn::Done& done) {
    meeting_->put(self, [&put, done](bool was_put, const std::string& why) {
      put = was_put;
      done(why);
    });
  });
  if (!put || left_) co_return false;
  standby_.reset();
  search_.found_nobody();
  co_await open_endpoint();
  if (left_) co_return false;
  keep_named();
  co_return true;
}

// Nobody needs to know where this node is but from there.
void Membership::keep_named() {
  if (!meeting_) return;
  meeting_->keep({.seat = own_seat(), .term = term_},
                 [this](rendezvous::Upkeep what, const rendezvous::Leader& other) {
                   if (left_ || !leads()) return;
                   if (other.seat.port == 0) return;  // It will say where it listens.
                   if (what == rendezvous::Upkeep::GiveWay) return give_way_to(other.seat);
                   tell(other.seat);
                 });
}

void Membership::meet_and_connect() {
  asio::co_spawn(
      io_, [this] { return meet(); },
      [this, weak = std::weak_ptr(alive_)](const std::exception_ptr& failed, bool met) {
        if (!weak.lock() || left_) return;
        if (failed) return callbacks_.on_unreachable(what_of(failed));
        if (met) connect();
      });
}

// ---- the arbiter ----

JobArbiterCallbacks Membership::on_arbiter() {
  return {.on_word = [this](const rendezvous::Word& word) { on_word(word); },
          .on_message = [this](const rendezvous::ControlMessage& message) { on_message(message); },
          .on_another =
              [this](const std::string& why) {
                if (!left_) callbacks_.on_message(rendezvous::Refused{.reason = why});
              }};
}

void Membership::on_word_wanted(const rendezvous::WordWish& wish) {
  rendezvous::Seat self{.node_id = search_.node_id(), .host = host_name_, .address = own_address()};
  for (const rendezvous::Seat& seat : search_.round().succession().council) {
    if (seat.node_id == self.node_id) self = seat;
  }
  if (endpoint_) self.port = endpoint_->port();
  arbiter_.want(wish, self);
}

void Membership::on_word(const rendezvous::Word& word) {
  if (left_) return;
  if (!endpoint_) return successor_->on_word(word);
  if (word.kind == rendezvous::Word::Kind::Refused) search_.named(word.holder);
  // Its job leads in a term above that of a successor that died.
  if (word.kind == rendezvous::Word::Kind::Given && word.term > term_) {
    term_ = word.term;
    announce();
  }
  endpoint_->on_word(word);
}

// An elastic job goes on without a node that is cut off from it, and takes it back as a new one. A
// static one waits for this node's rank if it has a restart left, and only where it can be taken
// over does its agent know where that wait may be.
bool Membership::may_rejoin() const {
  return (options_.backend == RendezvousBackend::C10d || successor_) && !leads();
}

void Membership::rejoin() {
  soon([this] { join_again(); });
}

void Membership::join_again() {
  const bool hosted = endpoint_ != nullptr;
  if (hosted) {
    stand_by();
    callbacks_.on_endpoint_closed();
  }
  const SearchStep step = search_.joins_again(rendezvous::random_id(8), hosted, Clock::now());
  spdlog::info("joining the job again, as a new node");
  carry_out(step);
}

// Of those that were in the last round. As another agent to all of them, without a vote in rounds
// that were before, this one can only ask and follow.
void Membership::look_for_leader() {
  if (!successor_) return;
  make_successor(options_.join_timeout);
  if (search_.round().succession().round.attempt < 0) return;
  successor_->heard(search_.round().succession());
  successor_->coordinator_lost();
}

void Membership::stand_by() {
  arbiter_.drop();
  // The job that this node founded has begun no round, and goes on nowhere.
  if (search_.round().succession().round.attempt < 0) arbiter_.forget(say_if_left_behind);
  if (meeting_) meeting_->stop();
  endpoint_->stand_by();
  make_successor(election_limit(options_));  // One that can follow.
  standby_plan_ = plan_;
  standby_ = std::move(endpoint_);
}

void Membership::hand_over() {
  const bool led = endpoint_ != nullptr;
  if (led) {
    stand_by();
    successor_->heard(search_.round().succession());
  }
  carry_out(search_.hands_over(led));
}

rendezvous::Hello Membership::hello() const {
  rendezvous::Hello hello;
  hello.run_id = options_.run_id;
  hello.node_id = search_.node_id();
  hello.replaces = search_.replaced_id();
  hello.host = host_name_;
  hello.address = options_.local_addr;
  if (endpoint_ && hello.address.empty()) hello.address = own_address();
  if (options_.backend == RendezvousBackend::Static || options_.node_rank_given) {
    hello.node_rank = options_.node_rank;
  }
  hello.nproc = options_.nproc_per_node;
  hello.role = options_.role;
  hello.elastic = options_.backend == RendezvousBackend::C10d;
  hello.nnodes_min = options_.nnodes_min;
  hello.nnodes_max = options_.nnodes_max;
  hello.max_restarts = options_.max_restarts;
  hello.pid = getpid();
  if (standby_) hello.standby_port = standby_->port();
  if (endpoint_ && successor_) hello.standby_port = endpoint_->port();
  const RoundMemory& round = search_.round();
  hello.term = round.succession().term;
  hello.attempt = round.succession().round.attempt;
  hello.tells = true;
  if (search_.resumes()) hello.resumes = round.seat();
  if (search_.resumes() && round.workers() > 0) hello.nproc = round.workers();
  return hello;
}

rendezvous::ControlClientOptions Membership::where_to() const {
  rendezvous::ControlClientOptions to;
  to.waiting_for = options_.backend == RendezvousBackend::Static ? "node 0" : "the endpoint's host";
  to.host = options_.endpoint_host;
  to.port = options_.endpoint_port;
  to.join_timeout = search_.patience(Clock::now());
  if (const rendezvous::Seat* seat = search_.target()) {
    to.waiting_for = "the coordinator";
    to.host = seat->address;
    to.port = static_cast<std::uint16_t>(seat->port);
  }
  if (endpoint_) {  // On the shortest way; the hello announces it as the others know it.
    to.host = plan_.bind_address.empty() ? "127.0.0.1" : plan_.bind_address;
    to.port = endpoint_->port();
  }
  to.hello = hello();
  to.tls = tls_;
  if (tls_) to.secret_advice = other_secret_advice(options_);
  return to;
}

// Not from inside one of the callbacks of the client that goes, and not once this node has left.
void Membership::soon(std::function<void()> then) {
  asio::post(io_, [this, weak = std::weak_ptr(alive_), then = std::move(then)] {
    if (weak.lock() && !left_) then();
  });
}

void Membership::connect_after(milliseconds pause) {
  retry_.expires_after(pause);
  retry_.async_wait([this, weak = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (weak.lock() && !error && !left_) connect();
  });
}

void Membership::connect() {
  retry_.cancel();
  search_.connects();
  arbiter_.connects();
  ++searches_;
  if (meeting_ && !endpoint_ && search_.target() == nullptr) return meet_and_connect();
  rendezvous::ControlClientCallbacks callbacks{
      .on_message = [this](const rendezvous::ControlMessage& message) { on_message(message); },
      .on_unreachable = [this](const std::string& why) { on_unreachable(why); },
      .on_lost = [this](const std::string& why, bool silent) { on_lost(why, silent); }};
  if (may_host_yet()) {
    callbacks.on_addresses = [this](const std::vector<std::string>& addresses) {
      return turns_host(addresses);
    };
  }
  client_ = std::make_unique<rendezvous::ControlClient>(io_, where_to(), std::move(callbacks));
}

// Not from inside one of the callbacks of the client that goes: what comes from there has a pause.
void Membership::carry_out(const SearchStep& step, bool in_callback) {
  using Then = SearchStep::Then;
  if (step.asks_members) look_for_leader();
  switch (step.then) {
    case Then::Nothing:
      return;
    case Then::Connect:
      if (in_callback || step.pause.count() > 0) return connect_after(step.pause);
      return connect();
    case Then::Elect:
      spdlog::warn("lost the coordinator, {}; looking for another one", step.why);
      return successor_->coordinator_lost();
    case Then::ElectLeaver:
      return successor_->coordinator_hands_over();
    case Then::Unreachable:
      return callbacks_.on_unreachable(step.why);
    case Then::Lost:
      return callbacks_.on_lost(step.why + what_would_help(), step.silent);
  }
}

void Membership::on_unreachable(const std::string& why) {
  if (left_) return;
  carry_out(search_.unreachable(why, endpoint_ != nullptr, Clock::now()), /*in_callback=*/true);
}

void Membership::on_lost(const std::string& why, bool silent) {
  if (left_) return;
  carry_out(search_.lost(why, silent, endpoint_ != nullptr, Clock::now()), /*in_callback=*/true);
}

void Membership::go_where(const rendezvous::Seat& coordinator) {
  const bool hosted = endpoint_ != nullptr;
  if (hosted) {
    stand_by();
    callbacks_.on_endpoint_closed();
  }
  carry_out(search_.goes_where(coordinator, hosted, Clock::now()));
}

void Membership::on_message(const rendezvous::ControlMessage& message) {
  if (left_) return;
  answered_ = true;
  if (!endpoint_ && arbiter_.holds_back(message)) return;
  if (!search_.hears(message, Clock::now())) {
    spdlog::warn("not heard: a {} of an earlier round", rendezvous::type_name(message));
    return;
  }
  if (const auto* moved = std::get_if<rendezvous::Moved>(&message)) {
    search_.sent_away();
    return soon([this, to = moved->coordinator] {
      if (search_.is_sent_away()) go_where(to);
    });
  }
  if (std::holds_alternative<rendezvous::HandOver>(message)) {
    search_.sent_away();
    return soon([this] {
      if (search_.is_sent_away()) hand_over();
    });
  }
  if (const auto* succession = std::get_if<rendezvous::Succession>(&message)) {
    if (successor_) successor_->heard(*succession);
    if (!endpoint_) arbiter_.heard_of(succession->job);
    return;
  }
  if (std::holds_alternative<rendezvous::Welcome>(message) && search_.welcomed()) {
    for (const rendezvous::ControlMessage& said : search_.round().said()) client_->send(said);
  }
  callbacks_.on_message(message);
}

// Only where this node could have gone on: with the job's verdict, or without a round, nothing
// would.
std::string Membership::what_would_help() const {
  const bool two_nodes = options_.nnodes_max == 2 &&
                         options_.takeover.value_or(options_.backend == RendezvousBackend::C10d);
  if (successor_ || endpoint_ || !two_nodes || !search_.round().could_go_on()) return "";
  return "; of two nodes neither is a majority: with --tie-breaker FILE on a file system that both "
         "share the one that is left would go on";
}

void Membership::lead(const rendezvous::Lead& elected) {
  if (left_) return;
  const rendezvous::Inherited inherited = search_.leads(elected, Clock::now());
  for (const rendezvous::Seat& seat : inherited.succession.council) {
    if (seat.node_id == search_.node_id()) standby_plan_.master_addr = seat.address;
  }
  plan_ = standby_plan_;
  endpoint_ = std::move(standby_);
  endpoint_->lead(options_, plan_, search_.node_id(), arbiter_.job(), inherited);
  callbacks_.on_endpoint_opened(plan_.bind_address, endpoint_->port());
  term_ = elected.term;
  announce();
  connect();
}

rendezvous::Seat Membership::own_seat() const {
  const auto& seat = search_.round().seat();
  const int group_rank = seat ? seat->group_rank : 0;
  return {search_.node_id(), group_rank, host_name_, own_address(), endpoint_->port()};
}

// For other nodes.
std::string Membership::own_address() const {
  return is_unspecified(plan_.master_addr) ? host_name_ : plan_.master_addr;
}

std::string Membership::store_host(const rendezvous::RoundStart& round) const {
  if (leads()) return leaders_store_host(plan_, round.master_addr, endpoint_->came_to());
  const bool came_by_endpoint = !endpoint_ && search_.target() == nullptr;
  return launcher::store_host(options_, came_by_endpoint, round.master_addr, round.master_port);
}

// So that nobody has to ask around for it.
void Membership::announce() {
  const rendezvous::Succession& last = search_.round().succession();
  for (const rendezvous::Council* council : {&last.council, &last.before}) {
    for (const rendezvous::Seat& seat : *council) {
      if (seat.node_id != search_.node_id()) tell(seat);
    }
  }
  if (meeting_) return keep_named();
  asio::co_spawn(
      io_, [this] { return tell_first_endpoint(); },
      [](const std::exception_ptr& thrown) {
        if (thrown)
          spdlog::warn("nobody tells a node 0 that is started again of this job any more");
      });
}

// Should the lost node be started again, it opens a new job of the same name at the endpoint that
// all know, and waits there for the others (RoundLimits::look_around). Nobody but this node can
// tell it that the job has gone on. Who ends calls nobody: where all launchers are told to end and
// are started again, the new one would give way to a job that refuses it.
asio::awaitable<void> Membership::tell_first_endpoint() {
  const std::weak_ptr alive(alive_);
  asio::steady_timer timer(io_);
  const int term = term_;
  while (alive.lock() && !left_ && leads() && term_ == term && !search_.round().ends()) {
    const rendezvous::Resolved resolved = co_await rendezvous::resolve(options_.endpoint_host);
    if (!alive.lock() || left_ || !leads() || search_.round().ends()) co_return;
    for (const std::string& address : resolved.addresses) {
      tell({.node_id = {}, .host = {}, .address = address, .port = options_.endpoint_port});
    }
    timer.expires_after(options_.heartbeat_interval);
    asio::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

void Membership::tell(const rendezvous::Seat& seat) {
  rendezvous::ask_for_vote(io_, seat, rendezvous::Leads{options_.run_id, term_, own_seat()}, tls_,
                           [this, weak = std::weak_ptr(alive_)](const rendezvous::Vote& vote) {
                             const bool later = weak.lock() && vote.term > term_ &&
                                                !vote.coordinator.address.empty();
                             if (later) give_way_to(vote.coordinator);
                           });
}

rendezvous::Vote Membership::on_leads(const rendezvous::Leads& leads) {
  if (left_ || leads.run_id != options_.run_id || leads.coordinator.node_id == search_.node_id())
    return {};
  if (this->leads() && leads.term <= term_) {
    return {.term = term_, .granted = false, .coordinator = own_seat()};
  }
  soon([this, leads] {
    if (this->leads()) return give_way_to(leads.coordinator);
    if (search_.believes(leads.term)) return follow(leads.coordinator);
    successor_->on_leads(leads);
  });
  return {};
}

void Membership::give_way_to(const rendezvous::Seat& leader) {
  if (left_ || !leads()) return;
  search_.named(leader);
  if (meeting_) meeting_->stop();
  endpoint_->step_down(
      fmt::format("the job goes on at {} port {}, under a coordinator that was elected since; this "
                  "node gives way to it",
                  leader.address, leader.port));
}

void Membership::follow(const rendezvous::Seat& coordinator) {
  if (left_) return;
  const SearchStep step = search_.follows(coordinator, endpoint_ != nullptr);
  if (step.then == SearchStep::Then::Nothing) return;
  spdlog::info("the node at {} port {} coordinates the job from here on", coordinator.address,
               coordinator.port);
  carry_out(step);
}

void Membership::send(const rendezvous::ControlMessage& message) {
  search_.says(message);
  if (client_) client_->send(message);
}

void Membership::answer(const rendezvous::Told& piece) {
  if (client_) client_->send(piece);
}

void Membership::ask_nodes(
    const rendezvous::Query& query, std::chrono::milliseconds limit,
    std::function<void(const std::vector<rendezvous::NodeTold>& nodes)> done) {
  if (!endpoint_) return done({});
  endpoint_->ask_nodes(query, limit,
                       [weak = std::weak_ptr(alive_),
                        done = std::move(done)](const std::vector<rendezvous::NodeTold>& nodes) {
                         if (weak.lock()) done(nodes);
                       });
}

// Where the connection goes, not what it was named: no name is looked up, and none can have
// changed.
void Membership::ask_coordinator(rendezvous::Query query, std::chrono::milliseconds limit,
                                 std::function<void(const rendezvous::QueryAnswer& answer)> done) {
  const std::string address = client_ ? client_->remote_address() : "";
  if (left_ || address.empty()) return done({.why = "not connected to the coordinator"});
  query.run_id = options_.run_id;
  rendezvous::query_coordinator(io_, address, client_->remote_port(), query, tls_, limit,
                                [weak = std::weak_ptr(alive_),
                                 done = std::move(done)](const rendezvous::QueryAnswer& answer) {
                                  if (weak.lock()) done(answer);
                                });
}

void Membership::leave(std::chrono::milliseconds linger, std::function<void()> on_left) {
  left_ = true;
  // Not from inside one of the client's callbacks.
  asio::post(io_, [this, linger, on_left = std::move(on_left)] {
    client_.reset();
    retry_.cancel();
    if (!endpoint_) return on_left();
    close_endpoint(linger, on_left);
  });
}

// The others hear the verdict first: one that is still looking for the arbiter must find it.
void Membership::close_endpoint(std::chrono::milliseconds linger, std::function<void()> then) {
  const auto on_left = [this, then = std::move(then)] {
    if (!meeting_) return then();
    meeting_->leave([then](const std::string& why) {
      if (!why.empty()) spdlog::warn("the job may be looked for here for a while: {}", why);
      then();
    });
  };
  endpoint_->wait_until_idle(linger, [this, on_left] {
    // One that has handed the job over goes, and the job goes on.
    if (!leads() || !search_.round().job_is_over()) return on_left();
    arbiter_.forget([on_left](const std::string& why) {
      say_if_left_behind(why);
      on_left();
    });
  });
}

}  // namespace ddprun::launcher
