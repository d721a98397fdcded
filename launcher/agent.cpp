// The agent's shell: signals, the control connection and the workers' ends become events of
// AgentStateMachine, and what that answers is carried out here, in the one thread of its loop.
#include "launcher/agent.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <ctime>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "launcher/agent_state.h"
#include "launcher/endpoint.h"
#include "launcher/endpoint_host.h"
#include "launcher/job_key.h"
#include "launcher/local_attempt.h"
#include "launcher/machine/local_addresses.h"
#include "launcher/machine/this_machine.h"
#include "launcher/output/forwarder.h"
#include "launcher/output/forwarder_sink.h"
#include "launcher/output/last_output.h"
#include "launcher/report/end_of_job.h"
#include "launcher/report/event_log.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/job_status.h"
#include "launcher/session.h"
#include "rendezvous/control/control_client.h"
#include "rendezvous/control/resolve.h"
#include "rendezvous/counted.h"
#include "rendezvous/host_name.h"
#include "rendezvous/random_id.h"
#include "rendezvous/secure/security_error.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using rendezvous::counted;
using rendezvous::FirstCause;
using std::chrono::milliseconds;
namespace exit_status = rendezvous::exit_status;

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

class Agent {
 public:
  explicit Agent(const LaunchOptions& options)
      : options_(options),
        node_id_(rendezvous::random_id(8)),
        host_name_(rendezvous::own_host_name()),
        output_(io_),
        last_output_(io_, output_),
        events_(options_.event_log, options_.run_id, host_name_),
        signals_(io_),
        forwarded_signals_(io_),
        status_signals_(io_),
        goodbye_timer_(io_),
        session_(io_, [this] { on_session_lost(); }),
        attempt_(io_, output_, events_, options_, host_name_,
                 {[this](const FirstCause& cause) {
                    local_cause_ = cause;
                    apply(machine_.worker_failed());
                  },
                  [this] { on_all_reaped(); }}),
        machine_({.grace = options_.shutdown_timeout}) {}

  int run();

 private:
  void handle_signals();
  void wait_for_signal();
  void wait_for_forwarded_signal();
  void wait_for_status_signal();
  void on_signal(int signal);
  void on_session_lost();

  bool open_key();
  asio::awaitable<void> join();
  void connect(const EndpointPlan& plan);
  void rejoin();
  bool may_rejoin() const;

  void on_message(const rendezvous::ControlMessage& message);
  void on_round(const rendezvous::RoundStart& round);
  void on_stop(const rendezvous::Stop& stop);

  void on_all_reaped();

  void apply(const AgentStep& step);
  void carry_out(AgentAction action, const AgentStep& step);
  void start_workers();
  void await_verdict(milliseconds limit);
  void end(int status, milliseconds linger = {});
  void report(int status);
  void leave_loop(milliseconds linger);
  void write_rest();

  LaunchOptions options_;
  std::string node_id_;
  std::string replaced_id_;  // What it was before this node was cut off.
  std::string host_name_;
  asio::io_context io_{1};
  OutputForwarder output_;
  LastOutput last_output_;
  EventLog events_;
  asio::signal_set signals_;            // End the job.
  asio::signal_set forwarded_signals_;  // Are the workers' business.
  asio::signal_set status_signals_;     // Ask where the job stands.
  asio::steady_timer goodbye_timer_;
  Session session_;
  std::unique_ptr<EndpointHost> endpoint_;  // On the node that hosts it.
  std::unique_ptr<rendezvous::ControlClient> client_;
  EndpointPlan plan_;
  std::shared_ptr<const rendezvous::TlsContext> tls_;       // Null: the job's nodes prove nothing.
  std::shared_ptr<const rendezvous::WorkerKey> store_key_;  // With --store-auth.
  LocalAttempt attempt_;
  AgentStateMachine machine_;

  rendezvous::RoundStart round_;  // The current one.
  int rounds_ = 0;
  // Of this round, or of the wait for the first one.
  std::chrono::steady_clock::time_point round_since_ = std::chrono::steady_clock::now();
  FirstCause local_cause_;               // The first local failure of this attempt.
  std::optional<FirstCause> job_cause_;  // The job's, from the coordinator.
  std::string why_;                      // The end in words, when there is no cause.
  int own_signal_ = 0;                   // The first signal we got.
  bool finish_heard_ = false;            // The connection's end after it is no loss.
  std::optional<int> exit_status_;
};

// ---- the loop ----

int Agent::run() {
  auto logger =
      std::make_shared<spdlog::logger>("ddprun", std::make_shared<ForwarderSink>(output_));
  logger->set_pattern("[ddprun] %v");
  logger->set_level(options_.quiet ? spdlog::level::warn : spdlog::level::info);
  const auto outer_logger = spdlog::default_logger();
  spdlog::set_default_logger(logger);
  for (const std::string& note : options_.notes) spdlog::info("{}", note);

  events_.launcher_started(options_);
  handle_signals();
  asio::co_spawn(
      io_, [this] { return join(); },
      [this](const std::exception_ptr& thrown) {
        if (!thrown || exit_status_) return;
        try {
          std::rethrow_exception(thrown);
        } catch (const std::exception& error) {
          why_ = error.what();
        }
        end(exit_status::internal);
      });
  io_.run();
  client_.reset();
  endpoint_.reset();
  spdlog::set_default_logger(outer_logger);
  return exit_status_.value_or(exit_status::internal);
}

void Agent::handle_signals() {
  const auto add = [](asio::signal_set& set, int signal) {
    asio::error_code error;
    set.add(signal, error);
    if (error) {
      spdlog::warn("cannot handle {}: {}", rendezvous::signal_name(signal), error.message());
    }
  };
  for (const int signal : options_.signals_to_handle) {
    if (signal == SIGHUP && is_ignored(signal)) continue;  // nohup: meant to outlive its terminal.
    if (signal == SIGHUP && !options_.stay) session_.watch();
    add(signals_, signal);
  }
  for (const int signal : options_.signals_to_forward) add(forwarded_signals_, signal);
  wait_for_signal();
  wait_for_forwarded_signal();
  // Unless it has another meaning in this job, or whoever started us wants it ignored.
  const auto has_meaning = [](const std::vector<int>& signals) {
    return std::find(signals.begin(), signals.end(), SIGUSR1) != signals.end();
  };
  if (has_meaning(options_.signals_to_handle) || has_meaning(options_.signals_to_forward)) return;
  if (is_ignored(SIGUSR1)) return;
  add(status_signals_, SIGUSR1);
  wait_for_status_signal();
}

void Agent::wait_for_status_signal() {
  status_signals_.async_wait([this](const asio::error_code& error, int) {
    if (error) return;
    using std::chrono::duration_cast;
    const JobStatus status{
        .in_attempt = rounds_ > 0,
        .since = duration_cast<milliseconds>(std::chrono::steady_clock::now() - round_since_),
        .join_timeout = options_.join_timeout,
        .attempt = round_.attempt,
        .node_rank = round_.group_rank,
        .nodes = round_.group_world_size,
        .rank_base = round_.rank_base,
        .workers = options_.nproc_per_node,
        .world_size = round_.world_size,
        .pids = attempt_.pids()};
    output_.write_line("[ddprun] " + to_text(status));  // Asked for: also with --quiet.
    wait_for_status_signal();
  });
}

void Agent::wait_for_forwarded_signal() {
  forwarded_signals_.async_wait([this](const asio::error_code& error, int signal) {
    if (error) return;
    const int running = attempt_.running();
    spdlog::info("got {}: passed on to {}", rendezvous::signal_name(signal),
                 counted(running, "worker"));
    events_.signal_received(signal, /*forwarded=*/true);
    attempt_.forward_signal(signal);
    wait_for_forwarded_signal();
  });
}

void Agent::wait_for_signal() {
  signals_.async_wait([this](const asio::error_code& error, int signal) {
    if (error) return;
    on_signal(signal);
    wait_for_signal();
  });
}

void Agent::on_signal(int signal) {
  events_.signal_received(signal, /*forwarded=*/false);
  last_output_.signal_received(signal);
  const bool first = own_signal_ == 0;
  if (first) {
    own_signal_ = signal;
    const int running = attempt_.running();
    if (running > 0) {
      spdlog::warn("got {}: stopping {}, grace {}{}", rendezvous::signal_name(signal),
                   counted(running, "worker"), rendezvous::time_text(options_.shutdown_timeout),
                   signal == SIGINT ? " (Ctrl-C again kills them)" : "");
    } else {
      spdlog::warn("got {}", rendezvous::signal_name(signal));
    }
  }
  apply(machine_.signal_received(signal, client_ && client_->connected()));
}

// A terminal would have sent SIGHUP. Whoever reads this does so in another node's output, or not at
// all.
void Agent::on_session_lost() {
  spdlog::warn("the session that started this job is lost (--stay goes on without it)");
  on_signal(SIGHUP);
}

// ---- joining ----

// Before this node listens anywhere or says a word to anybody.
bool Agent::open_key() {
  try {
    JobKeys keys = open_job_keys(options_);
    tls_ = std::move(keys.control);
    store_key_ = std::move(keys.store);
    attempt_.set_worker_key(std::move(keys.workers));
    return true;
  } catch (const rendezvous::SecurityError& error) {
    why_ = error.what();
    end(exit_status::usage);
    return false;
  }
}

asio::awaitable<void> Agent::join() {
  if (!open_key()) co_return;
  EndpointFacts facts{.own_host_name = host_name_, .is_local = is_local_address};
  std::string resolve_error;
  if (needs_addresses(options_)) {
    rendezvous::Resolved resolved = co_await rendezvous::resolve(options_.endpoint_host);
    if (exit_status_) co_return;
    facts.addresses = std::move(resolved.addresses);
    resolve_error = std::move(resolved.error);
  }
  const EndpointPlan plan = plan_endpoint(options_, facts);
  if (plan.role == EndpointPlan::Role::Host && !resolve_error.empty()) {
    why_ = fmt::format(
        "cannot resolve \"{}\", where this node hosts the endpoint: {}; give an "
        "address or a name that all nodes can resolve",
        options_.endpoint_host, resolve_error);
    end(exit_status::internal);
    co_return;
  }
  if (!plan.warning.empty()) spdlog::warn("{}", plan.warning);
  if (plan.role != EndpointPlan::Role::Join) {
    endpoint_ = EndpointHost::open(io_, options_, plan, node_id_, tls_, store_key_);
    if (endpoint_) machine_.endpoint_opened();
    if (endpoint_) events_.endpoint_opened(plan.bind_address, endpoint_->port());
  }
  plan_ = plan;
  connect(plan);
}

// An elastic job goes on without a node that is cut off from it, and takes it back as a new one. A
// static one cannot go on: it ends, or has taken the restart that waits for this node's rank.
bool Agent::may_rejoin() const {
  return options_.backend == RendezvousBackend::C10d && !endpoint_ && own_signal_ == 0;
}

void Agent::rejoin() {
  if (exit_status_) return;
  replaced_id_ = std::exchange(node_id_, rendezvous::random_id(8));
  finish_heard_ = false;
  spdlog::info("joining the job again, as a new node");
  connect(plan_);
}

void Agent::connect(const EndpointPlan& plan) {
  rendezvous::ControlClientOptions to;
  to.host = options_.endpoint_host;
  to.port = options_.endpoint_port;
  to.waiting_for = options_.backend == RendezvousBackend::Static ? "node 0" : "the endpoint's host";
  to.join_timeout = options_.join_timeout;
  to.tls = tls_;
  if (tls_) to.secret_advice = other_secret_advice(options_);
  to.hello.run_id = options_.run_id;
  to.hello.node_id = node_id_;
  to.hello.replaces = replaced_id_;
  to.hello.host = host_name_;
  to.hello.address = options_.local_addr;
  if (options_.backend == RendezvousBackend::Static || options_.node_rank_given) {
    to.hello.node_rank = options_.node_rank;
  }
  to.hello.nproc = options_.nproc_per_node;
  to.hello.role = options_.role;
  to.hello.elastic = options_.backend == RendezvousBackend::C10d;
  to.hello.nnodes_min = options_.nnodes_min;
  to.hello.nnodes_max = options_.nnodes_max;
  to.hello.max_restarts = options_.max_restarts;
  to.hello.pid = getpid();
  if (endpoint_) {  // On the shortest way, but announced as the others know it.
    to.host = plan.bind_address.empty() ? "127.0.0.1" : plan.bind_address;
    to.port = endpoint_->port();
    if (to.hello.address.empty()) to.hello.address = plan.master_addr;
  }
  client_ = std::make_unique<rendezvous::ControlClient>(
      io_, std::move(to),
      rendezvous::ControlClientCallbacks{
          .on_message = [this](const rendezvous::ControlMessage& message) { on_message(message); },
          .on_unreachable =
              [this](const std::string& why) {
                why_ = why;
                apply(machine_.unreachable());
              },
          .on_lost =
              [this](const std::string& why, bool silent) {
                if (exit_status_ || finish_heard_) return;
                why_ = "lost the coordinator, " + why;
                if (attempt_.running() > 0) spdlog::error("{}; stopping the workers", why_);
                apply(silent && may_rejoin() ? machine_.cut_off() : machine_.coordinator_lost());
              }});
}

// ---- messages ----

void Agent::on_message(const rendezvous::ControlMessage& message) {
  if (exit_status_) return;
  if (const auto* round = std::get_if<rendezvous::RoundStart>(&message)) return on_round(*round);
  if (const auto* stop = std::get_if<rendezvous::Stop>(&message)) return on_stop(*stop);
  if (const auto* waiting = std::get_if<rendezvous::Waiting>(&message)) {
    spdlog::info("{}", waiting->text);
    events_.waiting(*waiting);
  } else if (const auto* refused = std::get_if<rendezvous::Refused>(&message)) {
    why_ = "the endpoint refused this node: " + refused->reason;
    apply(machine_.refused(refused->exit_status));
  } else if (const auto* finish = std::get_if<rendezvous::Finish>(&message)) {
    finish_heard_ = true;
    job_cause_ = finish->cause;
    why_ = finish->why;
    if (attempt_.running() > 0) {
      spdlog::error("{}; stopping {}", why_, counted(attempt_.running(), "worker"));
    }
    const bool rejoins = finish->may_rejoin && may_rejoin();
    apply(rejoins ? machine_.cut_off() : machine_.finish_received(finish->exit_status));
  }
}

void Agent::on_round(const rendezvous::RoundStart& round) {
  round_ = round;
  ++rounds_;
  round_since_ = std::chrono::steady_clock::now();
  events_.attempt_started(round);
  const std::string workers = counted(round.world_size, "worker");
  const int last = round.rank_base + options_.nproc_per_node - 1;
  if (round.group_world_size > 1) {
    spdlog::info("attempt {}: {} nodes, {}; this is node {} with {}", round.attempt,
                 round.group_world_size, workers, round.group_rank,
                 last == round.rank_base ? fmt::format("rank {}", last)
                                         : fmt::format("ranks {} to {}", round.rank_base, last));
  } else if (round.attempt > 0 || options_.nnodes_max > 1) {
    spdlog::info("attempt {}: {}", round.attempt, workers);
  }
  apply(machine_.round_started());
}

void Agent::on_stop(const rendezvous::Stop& stop) {
  if (stop.final_verdict) job_cause_ = stop.cause;
  why_ = stop.why;
  events_.attempt_verdict(stop);
  // The report that follows a final verdict names the cause, but not why there is no restart.
  const bool news = !stop.final_verdict || attempt_.running() > 0 || options_.max_restarts > 0;
  if (own_signal_ == 0 && news) spdlog::warn("{}", stop.why);
  apply(machine_.stop_received(
      stop.signal, stop.final_verdict ? std::optional<int>(stop.exit_status) : std::nullopt));
}

// ---- workers and actions ----

void Agent::on_all_reaped() {
  const bool succeeded = machine_.state() == AgentState::Running;
  events_.attempt_ended(succeeded);
  apply(succeeded ? machine_.workers_succeeded() : machine_.workers_reaped());
}

void Agent::start_workers() {
  const auto failure = attempt_.start(round_);
  if (!failure) return client_->send(rendezvous::Started{round_.attempt});
  local_cause_ = *failure;
  apply(machine_.start_failed());
}

void Agent::apply(const AgentStep& step) {
  spdlog::debug("{}", step.reason);
  for (const AgentAction action : step.actions) carry_out(action, step);
}

void Agent::await_verdict(milliseconds limit) {
  goodbye_timer_.expires_after(limit);
  goodbye_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) apply(machine_.leaving_overdue());
  });
}

void Agent::carry_out(AgentAction action, const AgentStep& step) {
  switch (action) {
    case AgentAction::StartWorkers:
      return start_workers();
    case AgentAction::StopWorkers:
      return attempt_.stop(step.signal, options_.shutdown_timeout);
    case AgentAction::KillWorkers:
      spdlog::warn("killing {}", counted(attempt_.running(), "worker"));
      return attempt_.stop(SIGKILL, milliseconds{0});
    case AgentAction::ReportFailure:
      return client_->send(rendezvous::WorkerFailed{round_.attempt, local_cause_});
    case AgentAction::ReportSucceeded:
      return client_->send(rendezvous::WorkersSucceeded{round_.attempt});
    case AgentAction::ReportReaped:
      return client_->send(rendezvous::Reaped{round_.attempt, attempt_.error_before_stop()});
    case AgentAction::Rejoin:
      // Not from inside one of the callbacks of the client that goes.
      return asio::post(io_, [this] { rejoin(); });
    case AgentAction::SayLeaving:
      return client_->send(rendezvous::Leaving{own_signal_});
    case AgentAction::AwaitVerdict:
      return await_verdict(step.verdict_limit);
    case AgentAction::Exit:
      return end(step.exit_status, step.linger);
  }
}

void Agent::end(int status, milliseconds linger) {
  if (exit_status_) return;
  exit_status_ = status;
  report(status);
  events_.job_ended(status, why_, job_cause_);
  goodbye_timer_.cancel();
  // Not from inside one of the client's callbacks.
  asio::post(io_, [this, linger] { leave_loop(linger); });
}

// The endpoint goes last: other agents may not have read the verdict yet, and their workers' store
// is ours.
void Agent::leave_loop(milliseconds linger) {
  client_.reset();
  if (!endpoint_) return write_rest();
  endpoint_->wait_until_idle(linger, [this] { write_rest(); });
}

void Agent::write_rest() {
  last_output_.wait(attempt_.log_folder(), [this] { io_.stop(); });
}

void Agent::report(int status) {
  FailureReport failure{.run_id = options_.run_id,
                        .node_rank = rounds_ > 0 ? round_.group_rank : -1,
                        .ended_s = ::time(nullptr),
                        .program = options_.program_name,
                        .this_host = host_name_,
                        .exit_status = status,
                        .attempts = rounds_,
                        .max_restarts = options_.max_restarts,
                        .why = why_,
                        .cause = job_cause_,
                        .local_workers = attempt_.ends()};
  if (has_cause_to_blame(failure)) {
    failure.culprits_error_file = attempt_.error_file_of(*job_cause_);
    failure.log_dir = attempt_.keep_files();
  }
  tell_end_of_job(failure, options_, own_signal_, output_);
}

}  // namespace

int run_agent(const LaunchOptions& options) { return Agent(options).run(); }

}  // namespace ddprun::launcher
