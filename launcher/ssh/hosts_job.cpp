// Three kinds of bytes come from a host, in this order: what ssh and login scripts say, messages of
// its launcher, and what workers write. The first are kept for the case that the host fails, the
// last go to the console under the host's name.
#include "launcher/ssh/hosts_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <memory>
#include <utility>

#include "launcher/agent_signals.h"
#include "launcher/hosts/chosen_environment.h"
#include "launcher/hosts/endpoint_choice.h"
#include "launcher/hosts/hosts_state.h"
#include "launcher/hosts/node_request.h"
#include "launcher/hosts/remote_command.h"
#include "launcher/machine/local_addresses.h"
#include "launcher/machine/this_machine.h"
#include "launcher/options/exit_code_map.h"
#include "launcher/output/color.h"
#include "launcher/output/console.h"
#include "launcher/output/forwarder.h"
#include "launcher/output/last_output.h"
#include "launcher/output/lines.h"
#include "launcher/output/whole_file.h"
#include "launcher/processes/child_process.h"
#include "launcher/processes/piped_process.h"
#include "launcher/report/failure_report.h"
#include "launcher/ssh/hosts_plan.h"
#include "rendezvous/control/first_cause.h"
#include "rendezvous/control/visible_text.h"
#include "rendezvous/counted.h"
#include "rendezvous/host/host_name.h"
#include "rendezvous/random_id.h"
#include "rendezvous/secure/job_secret.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using rendezvous::counted;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace exit_status = rendezvous::exit_status;

constexpr std::size_t said_bytes_max = 8 << 10;  // Before its launcher speaks.
constexpr milliseconds answer_most{60'000};      // Login scripts may be slow, a person waits.

HostsLimits limits_of(const LaunchOptions& options) {
  HostsLimits limits;
  limits.hello = std::min(options.join_timeout, answer_most);
  limits.opening = limits.hello;
  limits.ending = options.shutdown_timeout + options.heartbeat_timeout + milliseconds(30'000);
  limits.elastic = options.backend == RendezvousBackend::C10d;
  limits.stay = options.stay;
  limits.least = options.nnodes_min;
  return limits;
}

// One host as this launcher sees it.
struct Node {
  Host host;
  std::string workers;
  bool is_here = false;
  std::unique_ptr<PipedProcess> connection;
  MarkedText out{std::string(hello_mark)};
  std::optional<NodeHello> hello;
  std::optional<NodeEnd> end;
  int ended_with = 0;  // Where it has told no end.
  bool told = false, ended = false, killed = false, copied = false;
  std::string said, noise;  // On stderr and stdout before its launcher spoke.
  OutputLines out_lines, err_lines;
};

class HostsJob {
 public:
  HostsJob(const LaunchOptions& options, const std::string& launcher_path);

  int run();

 private:
  void start(int node);
  void tell(int node);
  void on_out(int node, std::string_view bytes);
  void on_err(int node, std::string_view bytes);
  void on_message(int node, const std::string& line);
  void on_hello(int node, const std::string& line);
  bool will_be_tried_again(int node, const ExitStatus& status);
  void on_end(int node, const ExitStatus& status);
  void note_failure(int node, const ExitStatus& status);
  void on_signal(int signal);
  void on_session_lost();
  void pass_on(int signal);
  bool choose_endpoint_once();
  std::vector<std::string> arguments_of(int node);

  void apply(const HostsStep& step);
  void carry_out(const HostsAct& act);
  void wait_for_deadline();
  void name_the_late();

  void show(int node, bool is_err, std::string_view bytes);
  void say(const std::string& text, LineKind kind = LineKind::Plain);
  void tell_end(int status);
  void write(const char* what, const std::string& path, const std::string& content);
  std::string report_of_none(int status) const;
  const NodeEnd* teller() const;
  int final_status() const;
  Node& at(int node) { return *nodes_[static_cast<std::size_t>(node)]; }
  bool elastic() const { return options_.backend == RendezvousBackend::C10d; }
  bool congested() {
    return output_.console(false).congested() || output_.console(true).congested();
  }

  const LaunchOptions& options_;
  const std::string launcher_path_;
  asio::io_context io_{1};
  OutputForwarder output_;
  LastOutput last_output_;
  AgentSignals signals_;
  asio::steady_timer timer_;
  HostsState state_;
  std::vector<std::unique_ptr<Node>> nodes_;

  const std::string mark_ = rendezvous::random_id();
  const std::string folder_ = own_folder();
  const std::vector<std::string> environment_ = own_environment();
  std::vector<std::string> variables_;
  std::shared_ptr<const rendezvous::SecretBytes> secret_;
  std::shared_ptr<const std::string> copy_;
  std::string endpoint_host_;
  int endpoint_port_ = 0;  // 0: node 0 chooses one.
  std::optional<NodeEnd> last_end_;
  std::string why_;  // The first that went wrong here, in words.
  int own_signal_ = 0;
  std::size_t reported_late_ = 0;
  bool told_of_turning_away_ = false;
};

HostsJob::HostsJob(const LaunchOptions& options, const std::string& launcher_path)
    : options_(options),
      launcher_path_(launcher_path),
      output_(io_),
      last_output_(io_, output_),
      signals_(io_, {.on_end = [this](int signal) { on_signal(signal); },
                     .on_session_lost = [this] { on_session_lost(); },
                     .on_forward = [this](int signal) { pass_on(signal); },
                     .on_tell = [this] { pass_on(SIGUSR1); },
                     .on_pause = [](int) { pause_process(); }}),  // The hosts cannot be halted.
      timer_(io_),
      state_(limits_of(options), static_cast<int>(options.over_ssh.hosts.size())) {
  const OverSsh& over_ssh = options.over_ssh;
  for (std::size_t i = 0; i < over_ssh.hosts.size(); ++i) {
    auto node = std::make_unique<Node>();
    node->host = over_ssh.hosts[i];
    node->workers = over_ssh.workers[i];
    node->is_here = is_this_machine(node->host);
    nodes_.push_back(std::move(node));
  }
  const ChosenEnvironment chosen = choose_environment(over_ssh.exports, environment_);
  variables_ = chosen.variables;
  for (const std::string& note : chosen.notes) say(note, LineKind::Warning);
}

int HostsJob::run() {
  if (!options_.quiet) {
    for (const std::string& note : options_.notes) say(note);
  }
  if (options_.auth != Auth::None) {
    secret_ = std::make_shared<const rendezvous::SecretBytes>(
        options_.secret_file_given ? rendezvous::read_secret(options_.secret_file)
                                   : fresh_secret());
  }
  if (options_.over_ssh.copy_self) copy_ = own_copy();
  output_.choose_colors(options_.color, environment_variable("NO_COLOR"),
                        environment_variable("TERM"));
  for (const bool is_err : {false, true}) {
    output_.console(is_err).on_relieved([this] {
      for (const auto& node : nodes_) {
        if (node->connection && !node->ended) node->connection->go_on();
      }
      apply(state_.output_waited(steady_clock::now()));
    });
  }
  signals_.handle(plan_signals(options_, signal_is_ignored));
  apply(state_.begin(steady_clock::now()));
  io_.run();
  const int status = final_status();
  tell_end(status);
  last_output_.wait(options_.log_dir.empty() ? "" : options_.log_dir + " on each host",
                    [this] { io_.stop(); });
  io_.restart();
  io_.run();
  signals_.hold();
  return status;
}

// ---- one node, from its start to its end ----

void HostsJob::start(int number) {
  Node& node = at(number);
  node.connection = std::make_unique<PipedProcess>(
      io_, PipedProcess::Events{
               .on_out = [this, number](std::string_view bytes) { on_out(number, bytes); },
               .on_err = [this, number](std::string_view bytes) { on_err(number, bytes); },
               .on_end = [this, number](const ExitStatus& status) { on_end(number, status); },
               .may_read = [this] { return !congested(); }});
  const std::vector<std::string> command =
      node_command(options_.over_ssh, node.host, launcher_path_, copy_.get());
  const int error = node.connection->start(command, environment_);
  if (error == 0) return;
  node.ended = true;
  const StartFailure failure = start_failure(command.front(), error);
  say(node.host.name + ": " + failure.what + "; " + failure.advice, LineKind::Error);
  apply(state_.ended(number, HostsState::Verdict::None, steady_clock::now()));
}

void HostsJob::on_out(int number, std::string_view bytes) {
  Node& node = at(number);
  node.out.add(bytes,
               {[&](std::string_view text) {
                  if (node.hello) return show(number, false, text);
                  node.noise += text;
                  if (copy_ && !node.copied && take_copy_wanted(node.noise)) {
                    node.copied = true;
                    node.connection->send(copy_, *copy_);
                  }
                  if (node.noise.size() > said_bytes_max) {
                    node.noise.erase(0, node.noise.size() - said_bytes_max);
                  }
                },
                [&](const std::string_view line) { on_message(number, std::string(line)); }});
}

void HostsJob::on_err(int number, std::string_view bytes) {
  Node& node = at(number);
  if (node.told) return show(number, true, bytes);
  node.said += bytes;
  if (node.said.size() > said_bytes_max) node.said.erase(0, node.said.size() - said_bytes_max);
}

void HostsJob::on_message(int number, const std::string& line) {
  Node& node = at(number);
  if (!node.hello) return on_hello(number, line);
  if (const auto port = read_opened(line)) {
    if (number != 0) return;  // One that hosts the endpoint in node 0's place has its own port.
    if (endpoint_port_ == 0) endpoint_port_ = *port;
    apply(state_.opened());
  } else if (is_begun(line)) {
    apply(state_.begun());
  } else if (auto end = read_end(line)) {
    last_end_ = *end;
    node.end = std::move(end);
  }
}

void HostsJob::on_hello(int number, const std::string& line) {
  Node& node = at(number);
  node.hello = read_hello(line);
  if (!node.hello || node.hello->protocol != node_protocol) {
    const std::string version =
        node.hello ? rendezvous::visible_text(node.hello->version, rendezvous::Lines::Escape)
                   : "another version";
    say(fmt::format("{} has {}, which this one cannot talk to: install the same ddprun there, or "
                    "take it off the PATH and give --copy-self",
                    node.host.name, version),
        LineKind::Error);
    apply(state_.refuse("a host has another version", steady_clock::now()));
    return;
  }
  node.out.set_mark(message_mark(mark_));
  apply(state_.hello(number, steady_clock::now()));
}

// Where the nodes meet is known when all have answered.
bool HostsJob::choose_endpoint_once() {
  if (!endpoint_host_.empty() || options_.over_ssh.endpoint_given) return true;
  std::vector<HostFacts> facts;
  for (const auto& node : nodes_) {
    facts.push_back({.is_here = node->is_here,
                     .name = node->host.name,
                     .addresses = node->host.addresses,
                     .ssh_connection = node->is_here ? "" : node->hello->ssh_connection});
  }
  const EndpointChoice choice = choose_endpoint(facts, own_addresses());
  if (choice.problem.empty()) {
    endpoint_host_ = choice.host;
    return true;
  }
  say(choice.problem, LineKind::Error);
  return false;
}

std::vector<std::string> HostsJob::arguments_of(int number) {
  const Node& node = at(number);
  std::vector<std::string> arguments = options_.over_ssh.node_arguments;
  const int least = options_.nnodes_min, most = options_.nnodes_max;
  arguments.push_back(least == most ? fmt::format("--nnodes={}", most)
                                    : fmt::format("--nnodes={}:{}", least, most));
  arguments.push_back("--nproc-per-node=" + node.workers);
  arguments.push_back("--rdzv-id=" + options_.run_id);
  if (!elastic()) arguments.push_back(fmt::format("--node-rank={}", number));
  // One file, where hosts share the folder: this one tells of all nodes.
  if (number == 0 && !options_.metrics_file.empty()) {
    arguments.push_back("--metrics-file=" + options_.metrics_file);
  }
  if (!options_.over_ssh.endpoint_given) arguments.push_back("--master-addr=" + endpoint_host_);
  if (!node.host.addresses.empty()) {
    arguments.push_back("--local-addr=" + node.host.addresses.front());
  }
  if (!options_.over_ssh.port_given && endpoint_port_ != 0) {
    arguments.push_back(fmt::format("--master-port={}", endpoint_port_));
  }
  const auto named = options_.sources.find("color");
  if (named == options_.sources.end() && output_.console(false).colors()) {
    arguments.push_back("--color=always");
  }
  arguments.push_back("--");
  arguments.insert(arguments.end(), options_.program.begin(), options_.program.end());
  return arguments;
}

void HostsJob::tell(int number) {
  Node& node = at(number);
  if (!choose_endpoint_once()) {
    apply(state_.refuse("the nodes have no address to meet at", steady_clock::now()));
    return;
  }
  NodeRequest request{.mark = mark_,
                      .folder = folder_,
                      .variables = variables_,
                      .arguments = arguments_of(number),
                      .has_secret = secret_ != nullptr,
                      .any_port = number == 0 && !options_.over_ssh.port_given,
                      .is_host = std::nullopt};
  if (elastic()) request.is_host = number == 0;
  node.told = true;
  node.said.clear();
  node.connection->send(to_line(request));
  if (!secret_) return;
  node.connection->send(secret_, secret_->text());
  node.connection->send("\n");
}

bool HostsJob::will_be_tried_again(int number, const ExitStatus& status) {
  Node& node = at(number);
  if (node.hello || node.killed || !is_turned_away(status.exit_code, node.said)) return false;
  const auto step = state_.turned_away(number, steady_clock::now());
  if (!step) return false;
  if (!std::exchange(told_of_turning_away_, true)) {
    say(
        fmt::format("{}: its sshd, or one on the way, takes no more logins at once (MaxStartups); "
                    "trying again, with fewer at a time",
                    node.host.name));
  }
  node.said.clear();
  node.noise.clear();
  node.copied = false;
  apply(*step);
  return true;
}

void HostsJob::on_end(int number, const ExitStatus& status) {
  if (will_be_tried_again(number, status)) return;
  Node& node = at(number);
  node.ended = true;
  const auto show_rest = [&](bool is_err) {
    OutputLines& lines = is_err ? node.err_lines : node.out_lines;
    OutputConsole& console = output_.console(is_err);
    lines.finish([&](std::string_view text) {
      console.add(&lines, "[" + node.host.name + "] ", std::string(text) + "\n");
    });
    console.write_some();
  };
  node.out.finish({[&](std::string_view text) {
                     if (node.hello) show(number, false, text);
                   },
                   [](std::string_view) {}});
  show_rest(false);
  show_rest(true);
  if (!node.killed && !node.end) note_failure(number, status);
  using Verdict = HostsState::Verdict;
  const Verdict verdict = !node.end               ? Verdict::None
                          : node.end->status == 0 ? Verdict::Success
                                                  : Verdict::Failure;
  apply(state_.ended(number, verdict, steady_clock::now()));
}

// It ended without a word on how the job went.
void HostsJob::note_failure(int number, const ExitStatus& status) {
  Node& node = at(number);
  const int code = status.signal != 0 ? 128 + status.signal : status.exit_code;
  // What ssh itself ends with, or one that was killed: the launcher there may have been well.
  const bool is_lost = status.signal != 0 || code == 255;
  node.ended_with =
      is_lost ? mapped_exit_status(options_.exit_code_map, exit_status::node_lost, {}) : code;
  if (!node.hello) {
    const std::string& said = node.said.empty() ? node.noise : node.said;
    const std::string why =
        node.is_here
            ? fmt::format("its launcher ended with status {}: {}", code, last_words_of(said))
            : ssh_failure(code, said, node.host.login, copy_ != nullptr);
    say(fmt::format("{}: {}", node.host.name, why), LineKind::Error);
  } else {
    // What came since it was told its part was shown as it came.
    const std::string words = last_words_of(node.said);
    const char* const stays =
        options_.stay && !node.is_here ? "; what runs there goes on (--stay)" : "";
    say((is_lost
             ? fmt::format("lost the connection to {} (status {}){}", node.host.name, code, stays)
             : fmt::format("{}: its launcher ended with status {}", node.host.name, code)) +
            (words.empty() ? "" : ": " + words),
        LineKind::Error);
  }
}

void HostsJob::on_signal(int signal) {
  last_output_.signal_received(signal);
  if (state_.phase() == HostsState::Phase::Done) return;  // Its readers alone are waited for.
  if (own_signal_ == 0) {
    own_signal_ = signal;
    if (why_.empty()) why_ = "got " + rendezvous::signal_name(signal);
    const auto left = std::count_if(nodes_.begin(), nodes_.end(), [](const auto& node) {
      return node->connection != nullptr && !node->ended;
    });
    say(fmt::format("got {}: stopping {}{}", rendezvous::signal_name(signal),
                    counted(static_cast<int>(left), "host"),
                    signal == SIGINT ? " (Ctrl-C again kills the workers)" : ""),
        LineKind::Warning);
  }
  apply(state_.signal(signal, steady_clock::now()));
}

// A terminal would have sent SIGHUP.
void HostsJob::on_session_lost() {
  if (why_.empty()) why_ = "the session that started this job is lost (--stay goes on without it)";
  on_signal(SIGHUP);
}

void HostsJob::pass_on(int signal) {
  for (const auto& node : nodes_) {
    if (node->told) node->connection->send(signal_line(signal));
  }
}

// ---- what the state answers ----

void HostsJob::apply(const HostsStep& step) {
  for (const HostsAct& act : step.acts) carry_out(act);
  wait_for_deadline();
}

void HostsJob::carry_out(const HostsAct& act) {
  switch (act.what) {
    case HostsAct::What::Start:
      // A failed start would otherwise be an event inside of an event.
      asio::post(io_, [this, node = act.node] {
        if (state_.phase() == HostsState::Phase::Starting) return start(node);
        at(node).ended = true;
        apply(state_.ended(node, HostsState::Verdict::None, steady_clock::now()));
      });
      return;
    case HostsAct::What::Tell:
      asio::post(io_, [this, node = act.node] { tell(node); });
      return;
    case HostsAct::What::Signal:
      return at(act.node).connection->send(signal_line(act.signal));
    case HostsAct::What::Kill:
      at(act.node).killed = true;
      if (at(act.node).connection) at(act.node).connection->kill();
      return;
    case HostsAct::What::Finish:
      return io_.stop();
  }
}

void HostsJob::wait_for_deadline() {
  const auto deadline = state_.deadline();
  if (!deadline) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(*deadline);
  timer_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    if (congested()) apply(state_.output_waited(steady_clock::now()));
    apply(state_.deadline_passed(steady_clock::now()));
    name_the_late();
  });
}

void HostsJob::name_the_late() {
  const HostsLimits limits = limits_of(options_);
  for (; reported_late_ < state_.late().size(); ++reported_late_) {
    const HostsState::Late& late = state_.late()[reported_late_];
    const Node& node = at(late.node);
    const std::string words = last_words_of(node.said.empty() ? node.noise : node.said);
    if (late.phase == HostsState::Phase::Starting) {
      say(fmt::format("{}: no answer within {}{}; does ssh {} true come back?", node.host.name,
                      rendezvous::time_text(limits.hello), words.empty() ? "" : ": " + words,
                      node.host.login),
          LineKind::Error);
    } else if (late.phase == HostsState::Phase::Opening) {
      say(fmt::format("{}: its launcher did not open the endpoint within {}; is the machine "
                      "overloaded? uptime, and dmesg for errors",
                      node.host.name, rendezvous::time_text(limits.opening)),
          LineKind::Error);
    } else {
      say(node.host.name + " did not end in time: its connection is cut", LineKind::Error);
    }
  }
}

// ---- the console ----

void HostsJob::show(int number, bool is_err, std::string_view bytes) {
  Node& node = at(number);
  OutputConsole& console = output_.console(is_err);
  OutputLines& lines = is_err ? node.err_lines : node.out_lines;
  const std::string prefix = "[" + node.host.name + "] ";
  const auto early = console.may_redraw(&lines, number) ? OutputLines::Early::Redraws
                                                        : OutputLines::Early::Nothing;
  lines.add(bytes, early, [&](std::string_view text) {
    if (text.back() != '\n' && text.find('\r') != text.npos) console.claim_redraw(&lines, number);
    console.add(&lines, console.colors() ? colored(prefix, rank_color(number)) : prefix, text);
  });
  console.write_some();
}

void HostsJob::say(const std::string& text, LineKind kind) {
  if (kind == LineKind::Error && why_.empty()) why_ = text;
  output_.write_line("[ddprun] " + text, kind);
}

// ---- the end ----

// Who knows most of how it ended: the node without which it did not begin, the node of the worker
// that is to blame, else the lowest.
const NodeEnd* HostsJob::teller() const {
  if (const auto preventer = state_.preventer()) {
    const Node& node = *nodes_[static_cast<std::size_t>(*preventer)];
    return node.end ? &*node.end : nullptr;
  }
  const NodeEnd* best = nullptr;
  for (const auto& node : nodes_) {
    if (!node->end) continue;
    if (best == nullptr || (node->end->has_culprit && !best->has_culprit)) best = &*node->end;
  }
  return best;
}

// Of an elastic job's nodes those that stayed to the end know how it ended.
int HostsJob::final_status() const {
  if (const auto preventer = state_.preventer()) {
    const Node& node = *nodes_[static_cast<std::size_t>(*preventer)];
    if (node.end) return node.end->status;
    if (node.hello && node.ended_with != 0) return node.ended_with;
  } else if (last_end_) {
    return last_end_->status;
  }
  if (own_signal_ != 0) return 128 + own_signal_;
  const bool had_begun =
      state_.has_begun() ||
      std::any_of(nodes_.begin() + 1, nodes_.end(), [](const auto& node) { return node->told; });
  // What nodes tell was mapped there.
  return mapped_exit_status(options_.exit_code_map,
                            had_begun ? exit_status::node_lost : exit_status::internal, {});
}

void HostsJob::tell_end(int status) {
  const NodeEnd* end = teller();
  if (!options_.report_file.empty()) {
    write("report", options_.report_file, end != nullptr ? end->report : report_of_none(status));
  }
  if (end == nullptr) {
    const int not_begun = mapped_exit_status(options_.exit_code_map, exit_status::internal, {});
    if (status == not_begun || state_.preventer()) say("the job did not begin", LineKind::Error);
    return;
  }
  if (status == 0 || end->text.empty()) return;
  if (const auto path = environment_variable("TORCHELASTIC_ERROR_FILE"); path && !path->empty()) {
    write("error file", *path, end->error_file);
  }
  if (!end->is_block) return say(end->text, LineKind::Warning);
  OutputConsole& console = output_.console(true);
  console.add(this, "", end->text + (end->text.back() == '\n' ? "" : "\n"));
  console.write_some();
}

void HostsJob::write(const char* what, const std::string& path, const std::string& content) {
  const std::string error = write_whole_file(path, content + '\n');
  if (error.empty()) return;
  say(fmt::format("cannot write the {} {}: {}", what, path, error), LineKind::Warning);
}

// Of a job of which no node has told how it ended.
std::string HostsJob::report_of_none(int status) const {
  return to_json(FailureReport{.run_id = options_.run_id,
                               .ended_s = ::time(nullptr),
                               .program = options_.program_name,
                               .this_host = rendezvous::own_host_name(),
                               .exit_status = status,
                               .attempts = state_.has_begun() ? 1 : 0,
                               .max_restarts = options_.max_restarts,
                               .why = why_,
                               .cause = std::nullopt,
                               .local_workers = {},
                               .culprits_error_file = "",
                               .log_dir = "",
                               .stalls = {}});
}

}  // namespace

int run_on_hosts(const LaunchOptions& options, const std::string& launcher_path) {
  if (options.dry_run) {
    std::fputs(hosts_plan_text(options, launcher_path).c_str(), stdout);
    return 0;
  }
  return HostsJob(options, launcher_path).run();
}

}  // namespace ddprun::launcher
