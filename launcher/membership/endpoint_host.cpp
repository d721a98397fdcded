// Options become limits of the job, and a port that is taken becomes words that help.
#include "launcher/membership/endpoint_host.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <string_view>
#include <system_error>
#include <utility>

#include "launcher/machine/descriptor_budget.h"
#include "launcher/machine/local_addresses.h"
#include "launcher/machine/this_machine.h"
#include "launcher/options/endpoint_options.h"
#include "launcher/processes/child_process.h"
#include "rendezvous/attempt_name.h"
#include "rendezvous/contract/progress_key.h"

namespace ddprun::launcher {
namespace {

rendezvous::JobLimits job_limits(const LaunchOptions& options, const EndpointPlan& plan,
                                 const std::string& node_id, const std::string& job, int port) {
  rendezvous::JobLimits limits;
  limits.run_id = options.run_id;
  limits.round.elastic = options.backend == RendezvousBackend::C10d;
  limits.round.nodes_min = options.nnodes_min;
  limits.round.nodes_max = options.nnodes_max;
  limits.round.join_timeout = options.join_timeout;
  limits.round.last_call = options.last_call_timeout;
  limits.round.loopback = !another_host_may_join(options);
  limits.restarts.restarts_max = options.max_restarts;
  limits.restarts.backoff_first = options.restart_backoff;
  limits.restarts.same_failures_max = options.max_same_failures;
  limits.restarts.forgive_after = options.reset_restarts_after;
  // Another jitter for each job: many that lost the same file server must not come back together.
  limits.restart_seed = std::hash<std::string>{}(node_id);
  // An agent alone talks to itself: if one end is dead, so is the other.
  const bool alone = options.nnodes_max == 1;
  limits.heartbeat_interval = alone ? rendezvous::Milliseconds{0} : options.heartbeat_interval;
  limits.heartbeat_timeout = options.heartbeat_timeout;
  limits.start_timeout = options.start_timeout;
  // Who said that it can park, and does not, has the time-out twice (workers/group_state.h).
  limits.stop_timeout = 2 * options.shutdown_timeout + std::chrono::seconds(60);
  if (!options.node_check.empty()) limits.stop_timeout += options.node_check_timeout;
  limits.host_node_id = node_id;
  limits.master_addr = plan.master_addr;
  limits.master_port = port;
  limits.may_be_taken_over = may_be_taken_over(options);
  // A coordinator that took over is heard here once in an interval. If it is lost just then, its
  // successor is, once all have noticed that and have voted.
  const auto all_notice = options.heartbeat_timeout + options.heartbeat_interval;
  if (limits.may_be_taken_over) limits.round.look_around = 2 * all_notice;
  limits.job = job;
  limits.word_limit = word_limit(options);
  if (job.empty()) return limits;
  limits.arbitration = arbitration_of(options);
  // Its key in etcd outlives the search for a successor: nobody begins a second job meanwhile.
  if (meets_in_etcd(options)) return limits;
  // A successor may have to wait for a claim to lapse before it leads, and is heard only then.
  limits.round.look_around = 3 * all_notice + std::chrono::seconds(5) + limits.word_limit;
  return limits;
}

std::size_t open_files_limit() {
  rlimit files{};
  return ::getrlimit(RLIMIT_NOFILE, &files) == 0 ? static_cast<std::size_t>(files.rlim_cur) : 1'024;
}

// Those that find no place would be waited for until the join time-out, and blamed for it.
void require_place_for_nodes(const LaunchOptions& options) {
  if (options.nnodes_min < 2) return;
  const OpenFiles files = open_files();
  const std::string problem = nodes_problem(
      files.free, files.limit, options.nproc_per_node + options.spares, options.nnodes_min);
  if (!problem.empty()) throw EndpointError(problem);
}

// Empty without a key: then nobody is asked.
std::function<bool(std::string_view, std::string_view)> proof_check(
    std::shared_ptr<const rendezvous::WorkerKey> key) {
  if (!key) return {};
  return [key = std::move(key)](std::string_view statement, std::string_view proof) {
    const auto bytes = rendezvous::proof_of_text(proof);
    return bytes && key->proves(statement, *bytes);
  };
}

std::string port_in_use(const std::string& where, int port) {
  const std::string holder = port_holder(port);
  return fmt::format(
      "cannot listen on {}: the port is in use{}; another job may have it: give another "
      "--master-port (or --rdzv-endpoint), on one node 0 for any free port",
      where, holder.empty() ? "" : " by " + holder);
}

std::string listen_problem(const std::system_error& error, const EndpointPlan& plan) {
  const std::string where = fmt::format(
      "{} port {}", plan.bind_address.empty() ? "all interfaces," : plan.bind_address, plan.port);
  if (error.code() == std::errc::address_in_use) return port_in_use(where, plan.port);
  return fmt::format("cannot listen on {}: {}", where, error.code().message());
}

}  // namespace

std::unique_ptr<EndpointHost> EndpointHost::open(
    asio::io_context& io, const LaunchOptions& options, const EndpointPlan& plan,
    const std::string& node_id, const std::string& job,
    std::shared_ptr<const rendezvous::TlsContext> tls,
    std::shared_ptr<const rendezvous::WorkerKey> store_key, OnOthers others) {
  auto host = std::make_unique<EndpointHost>();
  host->admit_own(options, plan);
  try {
    host->listen(io, options, plan, std::move(store_key));
  } catch (const std::system_error& error) {
    const bool in_use = error.code() == std::errc::address_in_use;
    if (in_use && plan.role == EndpointPlan::Role::HostIfFree) return nullptr;
    throw EndpointError(listen_problem(error, plan));
  }
  require_place_for_nodes(options);
  host->coordinator_ = std::make_unique<rendezvous::Coordinator>(
      io, job_limits(options, plan, node_id, job, host->server_->port()),
      host->callbacks(std::move(others)), host->strangers_, std::move(tls));
  return host;
}

std::unique_ptr<EndpointHost> EndpointHost::open_standby(
    asio::io_context& io, const LaunchOptions& options, const EndpointPlan& plan,
    std::shared_ptr<const rendezvous::TlsContext> tls,
    std::shared_ptr<const rendezvous::WorkerKey> store_key, OnOthers others) {
  auto host = std::make_unique<EndpointHost>();
  try {
    host->listen(io, options, plan, std::move(store_key));
  } catch (const std::system_error& error) {
    throw EndpointError(listen_problem(error, plan));
  }
  host->coordinator_ = std::make_unique<rendezvous::Coordinator>(
      io, host->callbacks(std::move(others)), host->strangers_, std::move(tls));
  return host;
}

void EndpointHost::lead(const LaunchOptions& options, const EndpointPlan& plan,
                        const std::string& node_id, const std::string& job,
                        const rendezvous::Inherited& inherited) {
  admit_own(options, plan);
  coordinator_->lead(job_limits(options, plan, node_id, job, server_->port()), inherited);
}

void EndpointHost::listen(asio::io_context& io, const LaunchOptions& options,
                          const EndpointPlan& plan,
                          std::shared_ptr<const rendezvous::WorkerKey> store_key) {
  // Our own agent comes this way, and so do the workers of a single node: they would wait for each
  // other until the join timeout.
  if (plan.bind_address.empty() || plan.bind_address == "127.0.0.1") {
    const std::string problem = loopback_problem();
    if (!problem.empty()) throw EndpointError(problem);
  }
  raise_open_files_limit();
  budget_ = share_descriptors(open_files_limit(), options.nproc_per_node + options.spares,
                              options.nnodes_max);
  const DescriptorBudget& budget = budget_;
  strangers_.total_max = budget.strangers;
  // The job's own nodes may all come at once, from behind one translated address.
  const auto own = std::min(static_cast<std::size_t>(options.nnodes_max), budget.strangers / 2);
  strangers_.per_host_max = std::min(std::max(strangers_.per_host_max, own), budget.strangers);
  // The server hands over sockets only while the event loop runs: the coordinator is there then.
  server_ = std::make_unique<rendezvous::Server>(
      io,
      rendezvous::ServerOptions{.bind_address = plan.bind_address,
                                .port = plan.port,
                                .store_access = &store_access_,
                                .proves = proof_check(std::move(store_key)),
                                .own_users_only = true,
                                .connections_max = budget.store_connections,
                                .connections_per_address_max = budget.store_connections_per_address,
                                .strangers = strangers_},
      [this](asio::ip::tcp::socket socket, std::string received) {
        coordinator_->adopt(std::move(socket), std::move(received));
      });
}

void EndpointHost::admit_own(const LaunchOptions& options, const EndpointPlan& plan) {
  for (const std::string& allowed : options.store_allow) store_access_.allow(allowed);
  // Workers of this node may come from any address of it, and from the one that they are told.
  for (const std::string& own : own_addresses()) store_access_.allow(own);
  store_access_.allow(plan.master_addr);
}

std::string EndpointHost::new_store_problem(int workers) {
  if (workers <= workers_max_) return "";
  workers_max_ = workers;
  return launcher::store_problem(budget_, workers);
}

rendezvous::CoordinatorCallbacks EndpointHost::callbacks(OnOthers others) {
  return {.on_start_attempt =
              [this](const rendezvous::RoundName& round) {
                server_->start_attempt(rendezvous::attempt_name(round.term, round.attempt));
              },
          .on_members =
              [this](const std::vector<std::string>& addresses) {
                store_access_.set_members(addresses);
                server_->recheck_access();
              },
          .progress =
              [this] {
                static const std::string key = "/" + std::string(rendezvous::progress_key);
                return server_->number(key).value_or(0);
              },
          .on_ask = std::move(others.on_ask),
          .on_leads = std::move(others.on_leads),
          .where = std::move(others.where),
          .on_word_wanted = std::move(others.on_word_wanted),
          .on_query = std::move(others.on_query)};
}

}  // namespace ddprun::launcher
