// The order of things at both ends. Keys come before the port, and the port before the connection,
// which on the endpoint's node goes to itself; at the end the endpoint goes last, since other nodes
// may not have read the verdict yet, and their workers' store is ours.
#include "launcher/membership.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <asio/post.hpp>
#include <utility>
#include <variant>

#include "launcher/job_key.h"
#include "launcher/machine/local_addresses.h"
#include "rendezvous/control/resolve.h"
#include "rendezvous/random_id.h"

namespace ddprun::launcher {

Membership::Membership(asio::io_context& io, const LaunchOptions& options, std::string host_name,
                       MembershipCallbacks callbacks)
    : io_(io),
      options_(options),
      callbacks_(std::move(callbacks)),
      host_name_(std::move(host_name)),
      node_id_(rendezvous::random_id(8)) {}

asio::awaitable<void> Membership::join() {
  JobKeys keys = open_job_keys(options_);
  tls_ = std::move(keys.control);
  store_key_ = std::move(keys.store);
  callbacks_.on_worker_key(std::move(keys.workers));

  EndpointFacts facts{.own_host_name = host_name_, .is_local = is_local_address};
  std::string resolve_error;
  if (needs_addresses(options_)) {
    rendezvous::Resolved resolved = co_await rendezvous::resolve(options_.endpoint_host);
    if (left_) co_return;  // A name server may be slow, and a signal came.
    facts.addresses = std::move(resolved.addresses);
    resolve_error = std::move(resolved.error);
  }
  plan_ = plan_endpoint(options_, facts);
  if (plan_.role == EndpointPlan::Role::Host && !resolve_error.empty()) {
    throw EndpointError(
        fmt::format("cannot resolve \"{}\", where this node hosts the endpoint: {}; give an "
                    "address or a name that all nodes can resolve",
                    options_.endpoint_host, resolve_error));
  }
  if (!plan_.warning.empty()) spdlog::warn("{}", plan_.warning);
  EndpointHost::OnAsk on_ask;
  if (may_be_taken_over(options_)) {
    make_successor();
    on_ask = [this](const rendezvous::AskVote& ask) { return successor_->on_ask(ask); };
  }
  if (plan_.role != EndpointPlan::Role::Join) {
    endpoint_ = EndpointHost::open(io_, options_, plan_, node_id_, tls_, store_key_, on_ask);
    if (endpoint_ && successor_) successor_->leads();
    if (endpoint_) callbacks_.on_endpoint_opened(plan_.bind_address, endpoint_->port());
  }
  if (successor_ && !endpoint_) open_standby();
  connect();
}

// What stands in the way of a takeover is no reason not to train: it is said, and this node can
// only follow.
void Membership::open_standby() {
  standby_plan_ = plan_standby(options_);
  try {
    standby_ = EndpointHost::open_standby(
        io_, options_, standby_plan_, tls_, store_key_,
        [this](const rendezvous::AskVote& ask) { return successor_->on_ask(ask); });
  } catch (const EndpointError& error) {
    spdlog::warn("this node could not take over if the endpoint's host is lost: {}", error.what());
  }
}

void Membership::make_successor() {
  rendezvous::TakeoverLimits limits;
  limits.all_notice = options_.heartbeat_timeout + options_.heartbeat_interval;
  limits.give_up = 2 * limits.all_notice + std::chrono::seconds(5);
  successor_ = std::make_unique<Successor>(
      io_, options_.run_id, node_id_, limits, tls_,
      SuccessorCallbacks{
          .on_lead = [this](int term) { lead(term); },
          .on_follow = [this](const rendezvous::Seat& coordinator) { follow(coordinator); },
          .on_give_up =
              [this](const std::string& why, bool still_there) {
                if (left_) return;
                callbacks_.on_lost(lost_why_ + "; " + why, lost_silent_ || still_there);
              }});
}

// An elastic job goes on without a node that is cut off from it, and takes it back as a new one. A
// static one cannot go on: it ends, or has taken the restart that waits for this node's rank.
bool Membership::may_rejoin() const {
  return options_.backend == RendezvousBackend::C10d && !endpoint_;
}

void Membership::rejoin() {
  // Not from inside one of the callbacks of the client that goes.
  asio::post(io_, [this] {
    if (left_) return;
    replaced_id_ = std::exchange(node_id_, rendezvous::random_id(8));
    // Another agent to all others, without a vote in rounds that were before.
    if (successor_) make_successor();
    round_.forget();
    resumes_ = false;
    spdlog::info("joining the job again, as a new node");
    connect();
  });
}

rendezvous::Hello Membership::hello() const {
  rendezvous::Hello hello;
  hello.run_id = options_.run_id;
  hello.node_id = node_id_;
  hello.replaces = replaced_id_;
  hello.host = host_name_;
  hello.address = options_.local_addr;
  if (endpoint_ && hello.address.empty()) hello.address = plan_.master_addr;
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
  if (resumes_) hello.resumes = round_.seat();
  return hello;
}

rendezvous::ControlClientOptions Membership::where_to() const {
  rendezvous::ControlClientOptions to;
  to.waiting_for = options_.backend == RendezvousBackend::Static ? "node 0" : "the endpoint's host";
  if (coordinator_) to.waiting_for = "the coordinator";
  to.join_timeout = options_.join_timeout;
  to.host = options_.endpoint_host;
  to.port = options_.endpoint_port;
  if (coordinator_) {
    to.host = coordinator_->address;
    to.port = static_cast<std::uint16_t>(coordinator_->port);
    // Whoever said that it leads is there; if not, somebody else will.
    if (resumes_) to.join_timeout = options_.heartbeat_timeout;
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

void Membership::connect() {
  client_ = std::make_unique<rendezvous::ControlClient>(
      io_, where_to(),
      rendezvous::ControlClientCallbacks{
          .on_message = [this](const rendezvous::ControlMessage& message) { on_message(message); },
          .on_unreachable =
              [this](const std::string& why) {
                if (left_) return;
                if (resumes_) return on_lost(why, /*silent=*/true);
                callbacks_.on_unreachable(why);
              },
          .on_lost = [this](const std::string& why, bool silent) { on_lost(why, silent); }});
}

void Membership::on_message(const rendezvous::ControlMessage& message) {
  if (left_) return;
  round_.heard(message);
  if (const auto* succession = std::get_if<rendezvous::Succession>(&message)) {
    if (successor_) successor_->heard(*succession);
    return;
  }
  if (std::holds_alternative<rendezvous::Welcome>(message) && resumes_) say_again();
  callbacks_.on_message(message);
}

void Membership::say_again() {
  resumes_ = false;
  for (const rendezvous::ControlMessage& message : round_.said()) client_->send(message);
}

void Membership::on_lost(const std::string& why, bool silent) {
  if (left_ || round_.finish_heard()) return;
  if (!successor_ || endpoint_ || !round_.could_go_on()) return callbacks_.on_lost(why, silent);
  spdlog::warn("lost the coordinator, {}; looking for another one", why);
  lost_why_ = why;
  lost_silent_ = silent;
  successor_->coordinator_lost();
}

void Membership::lead(int term) {
  if (left_) return;
  const rendezvous::Inherited inherited{
      .term = term, .succession = round_.succession(), .lost_why = lost_why_};
  for (const rendezvous::Seat& seat : round_.succession().council) {
    if (seat.node_id == node_id_) standby_plan_.master_addr = seat.address;
  }
  plan_ = standby_plan_;
  endpoint_ = std::move(standby_);
  endpoint_->lead(options_, plan_, node_id_, inherited);
  callbacks_.on_endpoint_opened(plan_.bind_address, endpoint_->port());
  resumes_ = true;
  connect();
}

void Membership::follow(const rendezvous::Seat& coordinator) {
  if (left_) return;
  spdlog::info("the node at {} port {} coordinates the job from here on", coordinator.address,
               coordinator.port);
  coordinator_ = coordinator;
  resumes_ = true;
  connect();
}

void Membership::send(const rendezvous::ControlMessage& message) {
  round_.said(message);
  if (client_) client_->send(message);
}

void Membership::leave(std::chrono::milliseconds linger, std::function<void()> on_left) {
  left_ = true;
  // Not from inside one of the client's callbacks.
  asio::post(io_, [this, linger, on_left = std::move(on_left)] {
    client_.reset();
    if (!endpoint_) return on_left();
    endpoint_->wait_until_idle(linger, on_left);
  });
}

}  // namespace ddprun::launcher
