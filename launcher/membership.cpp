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
  if (plan_.role != EndpointPlan::Role::Join) {
    endpoint_ = EndpointHost::open(io_, options_, plan_, node_id_, tls_, store_key_);
    if (endpoint_) callbacks_.on_endpoint_opened(plan_.bind_address, endpoint_->port());
  }
  connect();
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
    finish_heard_ = false;
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
  return hello;
}

rendezvous::ControlClientOptions Membership::where_to() const {
  rendezvous::ControlClientOptions to;
  to.host = options_.endpoint_host;
  to.port = options_.endpoint_port;
  if (endpoint_) {  // On the shortest way; the hello announces it as the others know it.
    to.host = plan_.bind_address.empty() ? "127.0.0.1" : plan_.bind_address;
    to.port = endpoint_->port();
  }
  to.waiting_for = options_.backend == RendezvousBackend::Static ? "node 0" : "the endpoint's host";
  to.join_timeout = options_.join_timeout;
  to.hello = hello();
  to.tls = tls_;
  if (tls_) to.secret_advice = other_secret_advice(options_);
  return to;
}

void Membership::connect() {
  client_ = std::make_unique<rendezvous::ControlClient>(
      io_, where_to(),
      rendezvous::ControlClientCallbacks{
          .on_message =
              [this](const rendezvous::ControlMessage& message) {
                if (left_) return;
                if (std::holds_alternative<rendezvous::Finish>(message)) finish_heard_ = true;
                callbacks_.on_message(message);
              },
          .on_unreachable =
              [this](const std::string& why) {
                if (!left_) callbacks_.on_unreachable(why);
              },
          .on_lost =
              [this](const std::string& why, bool silent) {
                if (!left_ && !finish_heard_) callbacks_.on_lost(why, silent);
              }});
}

void Membership::send(const rendezvous::ControlMessage& message) {
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
