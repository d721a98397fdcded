// The agent's life from its start to its exit status, in the order in which it is lived. What
// happens (signals, messages, ends of workers) becomes an event of AgentStateMachine, and what that
// answers is carried out here, in the one thread of the loop.
#include "launcher/agent.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <ctime>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <variant>

#include "launcher/agent_signals.h"
#include "launcher/agent_state.h"
#include "launcher/attempt_choices.h"
#include "launcher/job_export.h"
#include "launcher/local_attempt.h"
#include "launcher/membership/membership.h"
#include "launcher/node_check.h"
#include "launcher/options/exit_code_map.h"
#include "launcher/output/forwarder.h"
#include "launcher/output/last_output.h"
#include "launcher/output/own_log.h"
#include "launcher/report/end_of_job.h"
#include "launcher/report/event_log.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/job_status.h"
#include "launcher/stall_watch.h"
#include "launcher/watched_job.h"
#include "rendezvous/control/control_message.h"
#include "rendezvous/counted.h"
#include "rendezvous/host/host_name.h"
#include "rendezvous/secure/security_error.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using rendezvous::counted;
using rendezvous::FirstCause;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace exit_status = rendezvous::exit_status;

class Agent {
 public:
  Agent(const LaunchOptions& options, NodeChannel* starter)
      : options_(options),
        starter_(starter),
        host_name_(rendezvous::own_host_name()),
        output_(io_),
        log_(output_, options_.quiet),
        last_output_(io_, output_),
        events_(options_.event_log, options_.run_id, host_name_, output_),
        signals_(io_, {.on_end = [this](int signal) { on_signal(signal); },
                       .on_session_lost = [this] { on_starter_gone(); },
                       .on_forward = [this](int signal) { on_forwarded_signal(signal); },
                       .on_tell = [this] { tell_status(); },
                       .on_pause = [this](int signal) { on_pause(signal); }}),
        goodbye_timer_(io_),
        ask_again_timer_(io_),
        attempt_(io_, output_, events_, options_, host_name_,
                 {.on_failure = [this](const FirstCause& cause) { on_worker_failed(cause); },
                  .on_all_reaped = [this] { on_all_reaped(); },
                  .on_can_grow = [this] { apply(machine().replacements_ready()); }}),
        watched_(
            io_, options_, attempt_, host_name_, [this] { return state_to_show(); },
            ways_to_others()),
        export_(
            io_, options_, [this] { return watched_.snapshot(); },
            [this](bool others, std::function<void()> done) {
              watched_.look_around(others, std::move(done));
            }),
        stalls_(
            io_, options_, attempt_, watched_, events_, output_,
            [this] { return machine_.state(); },
            /*report_is_kept=*/starter_ != nullptr || !options_.report_file.empty()),
        membership_(io_, options_, host_name_, membership_callbacks()),
        check_(io_, options_.node_check, options_.node_check_timeout),
        machine_({.grace = options_.shutdown_timeout, .checks_node = check_.is_asked_for()}) {
    round_.max_restarts = options_.max_restarts;
  }
  ~Agent() {
    if (starter_ != nullptr) starter_->stop_watching();  // It outlives io_.
  }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  int run();

 private:
  MembershipCallbacks membership_callbacks();
  JobViewWays ways_to_others();

  void begin();
  void join();
  void when_fit(std::function<void()> go_on, bool somebody_waits = true);
  void ask_again_while_waiting();
  void on_unfit(const NodeCheck::Result& result);
  void could_not_join(const std::exception_ptr& thrown);
  void on_message(const rendezvous::ControlMessage& message);
  void on_round(const rendezvous::RoundStart& round);
  void on_stop(const rendezvous::Stop& stop);
  void on_finish(const rendezvous::Finish& finish);
  void on_unreachable(const std::string& why);
  void on_lost(const std::string& why, bool silent);
  void tell_workers_leave(bool rejoins) const;
  bool wants_to_stay() const { return own_signal_ == 0 && unfit_.empty(); }

  void on_worker_failed(const FirstCause& cause);
  void on_all_reaped();

  void on_signal(int signal);
  void on_starter_gone();
  void on_forwarded_signal(int signal);
  void on_pause(int signal);
  void tell_status();
  NodeState state_to_show() const;
  void listen_to_starter();
  void say_begun();

  // Knows what the workers' processes are before each event.
  AgentStateMachine& machine() {
    machine_.workers_kept(attempt_.kept() > 0);
    return machine_;
  }
  void apply(const AgentStep& step);
  void carry_out(AgentAction action, const AgentStep& step);
  void start_workers();
  void await_verdict(milliseconds limit);

  void end(int status, milliseconds linger = {});
  void drain_output();
  void report(int status);

  LaunchOptions options_;
  NodeChannel* starter_;
  std::string host_name_;
  asio::io_context io_{1};
  OutputForwarder output_;
  OwnLog log_;
  LastOutput last_output_;
  EventLog events_;
  AgentSignals signals_;
  asio::steady_timer goodbye_timer_;
  asio::steady_timer ask_again_timer_;
  LocalAttempt attempt_;
  WatchedJob watched_;
  JobExport export_;
  StallWatch stalls_;
  Membership membership_;  // Goes first, while what it says is still heard.
  NodeCheck check_;
  AgentStateMachine machine_;

  rendezvous::RoundStart round_;  // The current one; before the first with our own --max-restarts.
  int rounds_ = 0;
  bool has_said_begun_ = false;  // To the starter.
  // Of this round, or of the wait for the first one.
  steady_clock::time_point round_since_ = steady_clock::now();
  FirstCause local_cause_;               // The first local failure of this attempt.
  std::optional<FirstCause> job_cause_;  // The job's, from the coordinator.
  std::string why_;                      // The end in words.
  int own_signal_ = 0;                   // The first signal we got.
  bool starter_gone_ = false;            // Nobody sent it: the session of who started us is lost.
  std::string unfit_;                    // What this node's check has found wrong with it.
  std::optional<int> exit_status_;
};

int Agent::run() {
  for (const std::string& note : options_.notes) spdlog::info("{}", note);
  events_.launcher_started(options_);
  signals_.handle(plan_signals(options_, signal_is_ignored));
  if (starter_ != nullptr) listen_to_starter();
  watched_.open([this](const std::string& path) { attempt_.set_status_socket(path); });
  begin();
  io_.run();
  if (starter_ != nullptr) starter_->stop_watching();
  signals_.hold();
  return exit_status_.value_or(exit_status::internal);
}

void Agent::begin() {
  try {
    export_.begin();
  } catch (const std::exception&) {  // A port that is taken: told like all that keeps us out.
    return could_not_join(std::current_exception());
  }
  when_fit([this] {
    join();
    ask_again_while_waiting();
  });
}

void Agent::join() {
  asio::co_spawn(
      io_, [this] { return membership_.join(); },
      [this](const std::exception_ptr& thrown) {
        if (thrown && !exit_status_) could_not_join(thrown);
      });
}

// Calls `go_on` once this node is known to be fit for the job; otherwise it leaves.
void Agent::when_fit(std::function<void()> go_on, bool somebody_waits) {
  if (!check_.is_asked_for()) return go_on();
  check_.start(
      [this, go_on = std::move(go_on)](const NodeCheck::Result& result) {
        if (exit_status_ || !machine().awaits_check()) return;
        events_.node_checked(result.unfit, result.took.count());
        if (result.unfit.empty()) return go_on();
        on_unfit(result);
      },
      somebody_waits);
}

// A node may wait for its first round for days, beside a job whose places are all taken, and would
// bring into it whatever has happened to the machine meanwhile.
void Agent::ask_again_while_waiting() {
  if (!check_.is_asked_for() || exit_status_) return;
  ask_again_timer_.expires_after(2 * options_.node_check_timeout);
  ask_again_timer_.async_wait([this](const asio::error_code& error) {
    if (error || exit_status_ || machine_.state() != AgentState::Joining) return;
    when_fit([this] { ask_again_while_waiting(); }, /*somebody_waits=*/false);
  });
}

void Agent::on_unfit(const NodeCheck::Result& result) {
  unfit_ = result.unfit;
  why_ = "this node is not fit for the job: " + unfit_;
  std::istringstream output(result.output);
  for (std::string line; std::getline(output, line);) output_.write_line("[node check]: " + line);
  apply(machine().node_is_unfit(membership_.connected()));
}

// ---- the job: what the coordinator says ----

MembershipCallbacks Agent::membership_callbacks() {
  return {
      .on_worker_key =
          [this](rendezvous::UniqueFd key) { attempt_.set_worker_key(std::move(key)); },
      .on_endpoint_opened =
          [this](const std::string& address, int port) {
            machine_.endpoint_opened();
            events_.endpoint_opened(address, port);
            // Not at a takeover: it waits for the first one's word alone, and this one may block.
            if (starter_ != nullptr && rounds_ == 0) starter_->say_opened(port);
          },
      .on_endpoint_closed = [this] { machine_.endpoint_closed(); },
      .on_message = [this](const rendezvous::ControlMessage& message) { on_message(message); },
      .on_unreachable = [this](const std::string& why) { on_unreachable(why); },
      .on_lost = [this](const std::string& why, bool silent) { on_lost(why, silent); },
      .on_query =
          [this](const rendezvous::Query& query, std::function<void(const std::string&)> reply) {
            watched_.answer_for_job(query, std::move(reply));
          }};
}

JobViewWays Agent::ways_to_others() {
  return {.leads = [this] { return membership_.leads(); },
          .ask_nodes =
              [this](const rendezvous::Query& query, milliseconds limit,
                     std::function<void(const std::vector<rendezvous::NodeTold>&)> done) {
                membership_.ask_nodes(query, limit, std::move(done));
              },
          .ask_coordinator =
              [this](const rendezvous::Query& query, milliseconds limit,
                     std::function<void(const rendezvous::QueryAnswer&)> done) {
                membership_.ask_coordinator(query, limit, std::move(done));
              }};
}

void Agent::could_not_join(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const rendezvous::SecurityError& error) {  // A matter of --secret-file and --auth.
    why_ = error.what();
    end(exit_status::usage);
  } catch (const std::exception& error) {
    why_ = error.what();
    end(exit_status::internal);
  }
}

void Agent::on_message(const rendezvous::ControlMessage& message) {
  if (const auto* round = std::get_if<rendezvous::RoundStart>(&message)) return on_round(*round);
  if (const auto* stop = std::get_if<rendezvous::Stop>(&message)) return on_stop(*stop);
  if (const auto* finish = std::get_if<rendezvous::Finish>(&message)) return on_finish(*finish);
  if (const auto* query = std::get_if<rendezvous::Query>(&message)) {
    return watched_.answer_for_node(
        *query, [this, number = query->number](const std::string& text) {
          for (const auto& piece : rendezvous::told_pieces(number, text)) membership_.answer(piece);
        });
  }
  if (const auto* waiting = std::get_if<rendezvous::Waiting>(&message)) {
    spdlog::info("{}", waiting->text);
    events_.waiting(*waiting);
    // More are here than a round has places for, and one goes on: a round that forms would close.
    if (waiting->joined > waiting->wanted) {
      say_begun();  // Before spares of ours write.
      attempt_.stand_by();
    }
  } else if (const auto* refused = std::get_if<rendezvous::Refused>(&message)) {
    why_ = "the endpoint refused this node: " + refused->reason;
    apply(machine().refused(refused->exit_status));
  }
}

void Agent::on_round(const rendezvous::RoundStart& round) {
  round_ = round;
  round_.master_addr = membership_.store_host(round);  // For this node's workers alone.
  say_begun();
  ++rounds_;
  round_since_ = steady_clock::now();
  events_.attempt_started(round);
  watched_.round_started(round);
  const int workers = workers_here(options_, round);
  if (membership_.is_another_job()) attempt_.end_kept();
  const std::string text = round_text(round, workers, options_.nnodes_max > 1);
  if (!text.empty()) spdlog::info("{}", text);
  const std::string store_problem = membership_.new_store_problem(round.world_size);
  if (!store_problem.empty()) spdlog::warn("{}", store_problem);
  apply(machine().round_started());
  export_.changed();
}

void Agent::on_stop(const rendezvous::Stop& stop) {
  if (stop.final_verdict) job_cause_ = stop.cause;
  why_ = stop.why;
  events_.attempt_verdict(stop);
  if (stop.cause) watched_.attempt_ended(*stop.cause);
  // The report that follows a final verdict names the cause, but not why there is no restart.
  const bool news = !stop.final_verdict || attempt_.running() > 0 || round_.max_restarts > 0;
  if (own_signal_ == 0 && news) spdlog::warn("{}", stop.why);
  if (stop.cause) attempt_.look_at_living(*stop.cause);
  apply(machine().stop_received(
      stop.signal, stop.final_verdict ? std::optional<int>(stop.exit_status) : std::nullopt));
  export_.changed();
}

void Agent::on_finish(const rendezvous::Finish& finish) {
  job_cause_ = finish.cause;
  if (unfit_.empty()) why_ = finish.why;
  const bool rejoins = finish.may_rejoin && !membership_.leads() && wants_to_stay();
  tell_workers_leave(rejoins);
  apply(rejoins ? machine().cut_off() : machine().finish_received(finish.exit_status));
}

void Agent::on_unreachable(const std::string& why) {
  why_ = why;
  apply(machine().unreachable());
}

// Whoever closed the connection is gone, and the job with it. One that fell silent may be there
// still, behind a cut, and go on without this node.
void Agent::on_lost(const std::string& why, bool silent) {
  // What has never answered as one, a web server perhaps, was no coordinator.
  why_ = (membership_.has_met_job() ? "lost the coordinator, " : "cannot join the job of ") + why;
  const bool rejoins = silent && membership_.may_rejoin() && wants_to_stay();
  tell_workers_leave(rejoins);
  apply(rejoins ? machine().cut_off() : machine().coordinator_lost());
}

// Those that can park stay where this node comes back.
void Agent::tell_workers_leave(bool rejoins) const {
  if (attempt_.running() == 0) return;
  const std::string workers = counted(attempt_.running(), "worker");
  const char* verb = attempt_.running() == 1 ? "leaves" : "leave";
  if (rejoins) return spdlog::error("{}; {} {} the attempt", why_, workers, verb);
  spdlog::error("{}; stopping {}", why_, workers);
}

// ---- this node's workers ----

void Agent::on_worker_failed(const FirstCause& cause) {
  local_cause_ = cause;
  apply(machine().worker_failed());
}

void Agent::on_all_reaped() {
  const bool succeeded = machine_.state() == AgentState::Running;
  events_.attempt_ended(succeeded);
  apply(succeeded ? machine().workers_succeeded() : machine().workers_reaped());
}

// ---- signals ----

void Agent::on_signal(int signal) {
  events_.signal_received(signal, /*forwarded=*/false);
  last_output_.signal_received(signal);
  const bool first = own_signal_ == 0;
  if (first) {
    own_signal_ = signal;
    const std::string why =
        starter_gone_ ? "the session that started this node is lost (--stay goes on without it)"
                      : "got " + rendezvous::signal_name(signal);
    const int running = attempt_.running();
    if (running > 0) {
      spdlog::warn("{}: stopping {}, grace {}{}", why, counted(running, "worker"),
                   rendezvous::time_text(options_.shutdown_timeout),
                   signal == SIGINT ? " (Ctrl-C again kills them)" : "");
    } else {
      spdlog::warn("{}", why);
    }
  }
  apply(machine().signal_received(signal, membership_.connected()));
}

void Agent::on_forwarded_signal(int signal) {
  spdlog::info("got {}: passed on to {}", rendezvous::signal_name(signal),
               counted(attempt_.running(), "worker"));
  events_.signal_received(signal, /*forwarded=*/true);
  attempt_.forward_signal(signal);
}

// Not while the job ends: what it has of its grace to save its work would pass in a pause.
void Agent::on_pause(int signal) {
  if (own_signal_ != 0) return;
  if (options_.nnodes_max > 1) {
    spdlog::warn("got {}: halting {}; the other nodes take this one for lost after {}",
                 rendezvous::signal_name(signal), counted(attempt_.running(), "worker"),
                 rendezvous::time_text(options_.heartbeat_timeout));
  }
  events_.signal_received(signal, /*forwarded=*/true);
  attempt_.halt();
  pause_process();
  attempt_.let_go();
}

// A signal of the launcher that was typed takes the same way as one of our own.
void Agent::listen_to_starter() {
  starter_->watch(
      io_, [](int signal) { ::kill(::getpid(), signal); },
      [this] {
        if (!options_.stay) on_starter_gone();
      });
}

// A terminal would have sent SIGHUP. Whoever reads what is said of it does so in another node's
// output, or not at all.
void Agent::on_starter_gone() {
  if (starter_gone_) return;  // Its pipes, too, tell of it.
  starter_gone_ = own_signal_ == 0;
  on_signal(SIGHUP);
}

// Once, while nothing of ours is on its way to stdout: it is written there and then, and whoever
// reads may pause.
void Agent::say_begun() {
  if (starter_ != nullptr && !std::exchange(has_said_begun_, true)) starter_->say_begun();
}

void Agent::tell_status() {
  const auto since = std::chrono::duration_cast<milliseconds>(steady_clock::now() - round_since_);
  const JobStatus status{.in_attempt = rounds_ > 0,
                         .since = since,
                         .join_timeout = options_.join_timeout,
                         .attempt = round_.attempt,
                         .node_rank = round_.group_rank,
                         .nodes = round_.group_world_size,
                         .rank_base = round_.rank_base,
                         .workers = attempt_.workers(),
                         .world_size = round_.world_size,
                         .pids = attempt_.pids(),
                         .spares = options_.spares,
                         .spares_ready = attempt_.spares_ready()};
  output_.write_line("[ddprun] " + to_text(status));  // Asked for: also with --quiet.
}

NodeState Agent::state_to_show() const {
  return check_.is_running() ? NodeState::Checking : node_state(machine_.state());
}

// ---- what the state machine answers ----

void Agent::apply(const AgentStep& step) {
  spdlog::debug("{}", step.reason);
  for (const AgentAction action : step.actions) carry_out(action, step);
}

void Agent::carry_out(AgentAction action, const AgentStep& step) {
  switch (action) {
    case AgentAction::StartWorkers:
      return start_workers();
    case AgentAction::StopWorkers:
      return attempt_.stop(step.signal, options_.shutdown_timeout);
    case AgentAction::HoldWorkers:
      return attempt_.stop(step.signal, options_.shutdown_timeout, Keep::Held);
    case AgentAction::ParkWorkers:
      return attempt_.stop(step.signal, options_.shutdown_timeout, Keep::Parking, why_);
    case AgentAction::KillWorkers:
      spdlog::warn("killing {}", counted(attempt_.running(), "worker"));
      return attempt_.stop(SIGKILL, milliseconds{0});
    case AgentAction::ReportFailure:
      return membership_.send(rendezvous::WorkerFailed{round_.attempt, local_cause_, round_.term});
    case AgentAction::ReportSucceeded:
      return membership_.send(rendezvous::WorkersSucceeded{round_.attempt, round_.term});
    case AgentAction::ReportReaped:
      return membership_.send(rendezvous::Reaped{.attempt = round_.attempt,
                                                 .cause = attempt_.error_before_stop(),
                                                 .term = round_.term,
                                                 .nproc = attempt_.workers_at_once()});
    case AgentAction::ReportCanGrow:
      // What comes of it the coordinator says, on all nodes.
      spdlog::debug("what was lost on this node is replaced: it can have {} again",
                    counted(options_.nproc_per_node, "worker"));
      return membership_.send(rendezvous::CanGrow{
          .attempt = round_.attempt, .term = round_.term, .nproc = options_.nproc_per_node});
    case AgentAction::CheckNode:
      return when_fit([this] { apply(machine().node_is_fit()); });
    case AgentAction::Rejoin:
      return when_fit([this] {
        membership_.rejoin();
        ask_again_while_waiting();
      });
    case AgentAction::SayLeaving:
      return membership_.send(rendezvous::Leaving{.signal = unfit_.empty() ? own_signal_ : SIGTERM,
                                                  .unfit = unfit_,
                                                  .starter_gone = starter_gone_});
    case AgentAction::AwaitVerdict:
      return await_verdict(step.verdict_limit);
    case AgentAction::Exit:
      return end(step.exit_status, step.linger);
  }
}

void Agent::start_workers() {
  const auto failure = attempt_.start(round_);
  if (!failure) {
    membership_.send(rendezvous::Started{round_.attempt, round_.term});
    stalls_.attempt_started();
    return attempt_.look_whether_it_can_grow();
  }
  local_cause_ = *failure;
  apply(machine().start_failed());
}

void Agent::await_verdict(milliseconds limit) {
  goodbye_timer_.expires_after(limit);
  goodbye_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) apply(machine().leaving_overdue());
  });
}

// ---- the end ----

// The report comes before the wait for others: whoever watches this node should not wait for them.
void Agent::end(int status, milliseconds linger) {
  if (exit_status_) return;
  // Before anybody is told, so that report, log and status are one.
  status = mapped_exit_status(options_.exit_code_map, status, job_cause_);
  exit_status_ = status;
  attempt_.stop_spares();
  report(status);
  events_.job_ended(status, why_, job_cause_);
  goodbye_timer_.cancel();
  ask_again_timer_.cancel();
  export_.end(status, [this, linger] { membership_.leave(linger, [this] { drain_output(); }); });
}

void Agent::drain_output() {
  const std::string folder = attempt_.log_folder();
  last_output_.wait(
      folder, [this] { io_.stop(); },
      [this, folder](std::size_t bytes) { events_.output_dropped(bytes, folder); });
}

void Agent::report(int status) {
  FailureReport failure{.run_id = options_.run_id,
                        .node_rank = rounds_ > 0 ? round_.group_rank : -1,
                        .ended_s = ::time(nullptr),
                        .program = options_.program_name,
                        .this_host = host_name_,
                        .exit_status = status,
                        .attempts = rounds_,
                        .max_restarts = round_.max_restarts,
                        .why = why_,
                        .cause = job_cause_,
                        .local_workers = attempt_.ends(),
                        .stalls = stalls_.notes()};
  if (has_cause_to_blame(failure)) {
    failure.culprits_error_file = attempt_.error_file_of(*job_cause_);
    attempt_.keep_files(/*errors_told=*/tells_all(failure) || !usage_text(failure).empty());
  }
  failure.log_dir = attempt_.kept_path();
  if (starter_ == nullptr) return tell_end_of_job(failure, options_, own_signal_, output_);
  const LastWords words = last_words(failure, own_signal_);
  starter_->keep_end({.status = status,
                      .node_rank = failure.node_rank,
                      .has_culprit = job_cause_ && job_cause_->node_rank == failure.node_rank,
                      .text = words.text,
                      .is_block = words.is_block,
                      .report = to_json(failure),
                      .error_file = status == 0 ? "" : to_error_file(failure)});
}

}  // namespace

int run_agent(const LaunchOptions& options, NodeChannel* starter) {
  int status = 0;
  {
    Agent agent(options, starter);
    status = agent.run();
  }
  if (starter != nullptr) starter->say_end();  // Behind all that the workers have written.
  return status;
}

}  // namespace ddprun::launcher
