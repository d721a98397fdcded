// One round after the other, and within a round all hosts at once: who has not answered by its end
// is left out of the rest. Judging what was heard is the cores'.
#include "launcher/doctor/doctor_visit.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "launcher/doctor/doctor_report.h"
#include "launcher/doctor/group_findings.h"
#include "launcher/doctor/machine_findings.h"
#include "launcher/doctor/pair_plan.h"
#include "launcher/doctor/probe_message.h"
#include "launcher/hosts/endpoint_choice.h"
#include "launcher/hosts/hosts_state.h"
#include "launcher/hosts/node_request.h"
#include "launcher/hosts/remote_command.h"
#include "launcher/machine/local_addresses.h"
#include "launcher/machine/this_machine.h"
#include "launcher/options/help.h"
#include "launcher/output/color.h"
#include "launcher/output/whole_file.h"
#include "launcher/processes/child_process.h"
#include "launcher/processes/piped_process.h"
#include "launcher/ssh/hosts_plan.h"
#include "rendezvous/counted.h"
#include "rendezvous/host/host_name.h"
#include "rendezvous/random_id.h"

namespace ddprun::launcher {
namespace {

using rendezvous::counted;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::size_t said_max = 8 << 10;
constexpr int at_once = 8;  // ssh that log in. An sshd on the way may turn the eleventh away.
constexpr HostsLimits as_for_ajob;
constexpr milliseconds hello_most{60'000};
constexpr milliseconds facts_most{20'000};  // A driver's library may be read from a file server.
constexpr milliseconds clock_most{5'000};
constexpr milliseconds listen_most{10'000};
constexpr milliseconds goodbye_most{5'000};
constexpr int steps_of_pair = 5;  // Two connections and greetings, and a large message.

// One host as the doctor sees it.
struct Visited {
  Host host;
  bool is_here = false;
  std::unique_ptr<PipedProcess> connection;
  MarkedText out{std::string(probe_mark)};
  std::string said, noise;
  bool copied = false;
  bool waits_to_start = true;
  int turned_away = 0;           // So often, by an sshd that had too many logins.
  Clock::time_point not_before;  // It is not to be started.
  Clock::time_point started;
  std::optional<ProbeHello> hello;
  bool gone = false;                  // Left out of what follows.
  bool ended = false;                 // Its process has.
  std::optional<std::string> answer;  // To the last ask.
  bool asked = false;                 // ... and it is still owed.
  Clock::time_point asked_at, answered_at;
  std::optional<MachineFacts> facts;
  double clock_ahead_s = 0, clock_error_s = 0;
  std::string address, address_reason;
  std::string token;
  Listening listening;
};

bool is_awaited(const std::unique_ptr<Visited>& host) {
  return !host->waits_to_start && !host->hello && !host->gone;
}

class DoctorVisit {
 public:
  DoctorVisit(const DoctorOptions& options, const std::string& launcher_path);

  DoctorReport examine();

 private:
  using Asks = std::vector<std::pair<int, ProbeAsk>>;

  void start_some();
  void start(int number);
  bool will_be_tried_again(int number, int code);
  void on_out(int number, std::string_view bytes);
  void on_end(int number, const ExitStatus& status);
  void lose(int number, const std::string& value, const std::string& remedy);

  void greet_all();
  void ask(const Asks& asks, milliseconds most, const char* what);
  void ask_clocks();
  void ask_facts();
  void choose_addresses();
  void open_ports();
  void measure_pairs();
  void say_goodbye();
  void judge();
  Asks to_all(const ProbeAsk& ask) const;
  void show_progress(const std::string& text) const;
  Visited& at(int number) { return *hosts_[static_cast<std::size_t>(number)]; }
  int count() const { return static_cast<int>(hosts_.size()); }

  const DoctorOptions& options_;
  const std::string launcher_path_;
  const std::vector<std::string> environment_ = own_environment();
  std::shared_ptr<const std::string> copy_;
  asio::io_context io_{1};
  std::vector<std::unique_ptr<Visited>> hosts_;
  int at_once_ = at_once;
  DoctorReport report_;
};

DoctorVisit::DoctorVisit(const DoctorOptions& options, const std::string& launcher_path)
    : options_(options), launcher_path_(launcher_path) {
  std::vector<Host> hosts = options.over_ssh.hosts;
  report_.alone = hosts.empty();
  if (hosts.empty()) {
    const std::string name = rendezvous::own_host_name();
    hosts.push_back({.login = name, .name = name, .workers = {}, .addresses = {}});
  }
  for (Host& host : hosts) {
    auto visited = std::make_unique<Visited>();
    visited->is_here = is_this_machine(host);
    visited->host = std::move(host);
    visited->token = rendezvous::random_id();
    hosts_.push_back(std::move(visited));
  }
  if (options.over_ssh.copy_self) copy_ = own_copy();
  report_.version = version_text();
  report_.port = options.port;
}

// ---- one host ----

void DoctorVisit::start(int number) {
  Visited& host = at(number);
  host.started = Clock::now();
  host.ended = false;
  host.connection = std::make_unique<PipedProcess>(
      io_, PipedProcess::Events{
               .on_out = [this, number](std::string_view bytes) { on_out(number, bytes); },
               .on_err =
                   [this, number](std::string_view bytes) {
                     std::string& said = at(number).said;
                     said += bytes;
                     if (said.size() > said_max) said.erase(0, said.size() - said_max);
                   },
               .on_end = [this, number](const ExitStatus& status) { on_end(number, status); },
               .may_read = [] { return true; }});
  const std::vector<std::string> command =
      node_command(options_.over_ssh, host.host, launcher_path_, copy_.get(),
                   {std::begin(probe_words), std::end(probe_words)});
  const int error = host.connection->start(command, environment_);
  if (error == 0) return;
  host.ended = true;
  const StartFailure failure = start_failure(command.front(), error);
  lose(number, failure.what, failure.advice);
}

void DoctorVisit::on_out(int number, std::string_view bytes) {
  Visited& host = at(number);
  host.out.add(bytes, {[&](std::string_view text) {
                         host.noise += text;
                         if (copy_ && !host.copied && take_copy_wanted(host.noise)) {
                           host.copied = true;
                           host.connection->send(copy_, *copy_);
                         }
                         if (host.noise.size() > said_max) {
                           host.noise.erase(0, host.noise.size() - said_max);
                         }
                       },
                       [&](std::string_view line) {
                         if (!host.hello) {
                           host.hello = read_probe_hello(line);
                         } else if (host.asked) {
                           host.asked = false;
                           host.answered_at = Clock::now();
                           host.answer = line;
                         }
                       }});
}

// As a job's node would be.
bool DoctorVisit::will_be_tried_again(int number, int code) {
  Visited& host = at(number);
  if (host.hello || !is_turned_away(code, host.said)) return false;
  if (++host.turned_away >= as_for_ajob.tries) return false;
  at_once_ = as_for_ajob.at_once_where_short;
  host.waits_to_start = true;
  host.not_before = Clock::now() + pause_of_turned_away(number, host.turned_away);
  host.said.clear();
  host.noise.clear();
  host.copied = false;
  return true;
}

void DoctorVisit::on_end(int number, const ExitStatus& status) {
  Visited& host = at(number);
  host.ended = true;
  if (host.gone) return;
  const int code = status.signal != 0 ? 128 + status.signal : status.exit_code;
  if (will_be_tried_again(number, code)) return;
  const std::string& said = host.said.empty() ? host.noise : host.said;
  if (host.is_here) {
    return lose(
        number,
        fmt::format("its probe ended with status {}: {}", code, harmless(last_words_of(said))),
        "run ddprun doctor --probe by hand");
  }
  const std::string failure = ssh_failure(code, said, host.host.login, copy_ != nullptr);
  // ssh's words and the advice on them are one sentence.
  const std::size_t advice = failure.rfind("; ");
  lose(number, harmless(failure.substr(0, advice), 500),
       advice == failure.npos ? "try: ssh " + host.host.login + " ddprun --version"
                              : failure.substr(advice + 2));
}

void DoctorVisit::lose(int number, const std::string& value, const std::string& remedy) {
  Visited& host = at(number);
  host.gone = true;
  host.asked = false;
  if (host.connection) host.connection->kill();
  report_.findings.push_back({Finding::Level::Red,
                              host.host.name,
                              "ssh",
                              value,
                              "The host could not be asked, and no job could be started there.",
                              remedy,
                              {number}});
}

// ---- rounds ----

void DoctorVisit::show_progress(const std::string& text) const {
  const auto terminal = environment_variable("TERM");
  if (isatty(STDERR_FILENO) == 0 || !terminal || *terminal == "dumb") return;
  // Written over by the next one, and by the report.
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

void DoctorVisit::start_some() {
  auto awaited = std::count_if(hosts_.begin(), hosts_.end(), is_awaited);
  for (int i = 0; i < count() && awaited < at_once_; ++i) {
    Visited& host = at(i);
    if (!host.waits_to_start || Clock::now() < host.not_before) continue;
    host.waits_to_start = false;
    start(i);
    ++awaited;
  }
}

void DoctorVisit::greet_all() {
  const auto is_open = [](const auto& host) { return host->waits_to_start || is_awaited(host); };
  while (std::any_of(hosts_.begin(), hosts_.end(), is_open)) {
    start_some();
    const auto now = Clock::now();
    auto until = Clock::time_point::max();
    for (int i = 0; i < count(); ++i) {
      Visited& host = at(i);
      if (host.waits_to_start && now < host.not_before) until = std::min(until, host.not_before);
      if (!is_awaited(hosts_[static_cast<std::size_t>(i)])) continue;
      if (now >= host.started + hello_most) {
        const std::string words = last_words_of(host.said.empty() ? host.noise : host.said);
        lose(i, "no answer within 60 s" + (words.empty() ? "" : ": " + harmless(words)),
             "does ssh " + host.host.login + " true come back?");
      } else {
        until = std::min(until, host.started + hello_most);
      }
    }
    if (until == Clock::time_point::max()) continue;  // None of those that were started is left.
    show_progress(fmt::format("waiting for {} of {}",
                              std::count_if(hosts_.begin(), hosts_.end(), is_open), count()));
    io_.restart();
    // Nothing runs where all of them wait for another turn.
    if (io_.run_one_until(until) == 0 && io_.stopped()) std::this_thread::sleep_until(until);
  }
}

DoctorVisit::Asks DoctorVisit::to_all(const ProbeAsk& ask) const {
  Asks asks;
  for (std::size_t i = 0; i < hosts_.size(); ++i) asks.emplace_back(static_cast<int>(i), ask);
  return asks;
}

void DoctorVisit::ask(const Asks& asks, milliseconds most, const char* what) {
  for (const auto& [number, one] : asks) {
    Visited& host = at(number);
    host.answer.reset();
    if (host.gone) continue;
    host.asked = true;
    host.asked_at = Clock::now();
    host.connection->send(to_line(one));
  }
  const auto until = Clock::now() + std::max(most, options_.timeout);
  const auto is_owed = [](const auto& host) { return host->asked; };
  while (std::any_of(hosts_.begin(), hosts_.end(), is_owed) && Clock::now() < until) {
    io_.restart();
    io_.run_one_until(until);
  }
  for (int i = 0; i < count(); ++i) {
    if (!at(i).asked) continue;
    lose(i,
         fmt::format("no answer to the question for {} within {} s", what,
                     std::max(most, options_.timeout).count() / 1'000),
         "is the machine overloaded? uptime, and dmesg for errors");
  }
}

// The answer of the shortest round trip is the most exact one.
void DoctorVisit::ask_clocks() {
  for (int tries = 0; tries < 3; ++tries) {
    const auto wall = std::chrono::system_clock::now();
    const auto steady = Clock::now();
    ask(to_all({.what = ProbeAsk::What::Clock}), clock_most, "its clock");
    for (const auto& host : hosts_) {
      const auto there = host->answer ? read_clock(*host->answer) : std::nullopt;
      if (!there) continue;
      const std::chrono::duration<double> trip = host->answered_at - host->asked_at;
      if (tries > 0 && trip.count() / 2 >= host->clock_error_s) continue;
      const std::chrono::duration<double> here =
          wall.time_since_epoch() + (host->asked_at - steady);
      host->clock_error_s = trip.count() / 2;
      host->clock_ahead_s = *there - here.count() - trip.count() / 2;
    }
  }
}

void DoctorVisit::ask_facts() {
  // Of many hosts a host need not know all names: node 0's, and those of its neighbours.
  constexpr int names_max = 32;
  const std::string nonce = rendezvous::random_id();
  Asks asks;
  for (int i = 0; i < count(); ++i) {
    ProbeAsk one{.what = ProbeAsk::What::Facts};
    one.nonce = nonce;
    for (int other = 0; other < count(); ++other) {
      const bool near = count() <= names_max || other == 0 || std::abs(other - i) < names_max / 2;
      if (other != i && near) one.names.push_back(at(other).host.name);
    }
    asks.emplace_back(i, one);
  }
  show_progress("asking " + counted(count(), "host"));
  ask(asks, facts_most, "its facts");
  for (int i = 0; i < count(); ++i) {
    if (at(i).answer) at(i).facts = read_machine_facts(*at(i).answer);
    if (!at(i).facts && !at(i).gone) {
      lose(i, "its probe's answer makes no sense", "install the same ddprun there");
    }
  }
}

// As a job would reach it if it were node 0.
void DoctorVisit::choose_addresses() {
  for (int i = 0; i < count() && !report_.alone; ++i) {
    std::vector<HostFacts> hosts;
    for (int step = 0; step < count(); ++step) {
      const Visited& host = at((i + step) % count());
      if (host.gone) continue;
      hosts.push_back({.is_here = host.is_here,
                       .name = host.host.name,
                       .addresses = host.host.addresses,
                       .ssh_connection = host.is_here ? "" : host.hello->ssh_connection});
    }
    if (at(i).gone) continue;
    const EndpointChoice choice = choose_endpoint(hosts, own_addresses());
    at(i).address = choice.host;
    at(i).address_reason = choice.reason;
    if (choice.problem.empty()) continue;
    report_.findings.push_back({Finding::Level::Red,
                                at(i).host.name,
                                "address",
                                choice.problem,
                                "The nodes would have no address to meet at.",
                                "name this machine in -H by an address that the others reach",
                                {i}});
  }
}

void DoctorVisit::open_ports() {
  Asks asks;
  for (int i = 0; i < count(); ++i) {
    if (at(i).gone) continue;
    ProbeAsk one{.what = ProbeAsk::What::Listen};
    one.token = at(i).token;
    one.rendezvous_port = options_.port;
    // Of two names for one machine the first has its port.
    for (int other = 0; other < i; ++other) {
      if (!at(other).gone && is_same_machine(*at(i).facts, *at(other).facts)) {
        one.rendezvous_port = 0;
      }
    }
    asks.emplace_back(i, one);
  }
  ask(asks, listen_most, "its ports");
  for (const auto& [number, one] : asks) {
    Visited& host = at(number);
    if (host.gone) continue;
    host.listening = host.answer ? read_listening(*host.answer).value_or(Listening{}) : Listening{};
    const Listening& listening = host.listening;
    if (one.rendezvous_port == 0 || listening.has_rendezvous) continue;
    const std::string holder = listening.holder.empty() ? listening.problem : listening.holder;
    report_.findings.push_back(
        {Finding::Level::Amber,
         host.host.name,
         fmt::format("port {}", options_.port),
         "in use: " + holder,
         "Whether others can connect to it could not be tried, and a job whose node 0 is this host "
         "could not listen there.",
         "--master-port with another one, or end what has it; ss -ltnp",
         {number}});
  }
}

void DoctorVisit::measure_pairs() {
  const PairPlan plan = plan_pairs(count());
  report_.is_sample = plan.is_sample;
  for (std::size_t round = 0; round < plan.rounds.size(); ++round) {
    show_progress(
        fmt::format("measuring connections, round {} of {}", round + 1, plan.rounds.size()));
    Asks asks;
    std::vector<PairFacts> tried;
    for (const auto& [from, to] : plan.rounds[round]) {
      const Visited& target = at(to);
      if (at(from).gone || target.gone || target.address.empty()) continue;
      ProbeAsk one{.what = ProbeAsk::What::Connect};
      one.token = target.token;
      one.address = target.address;
      one.rendezvous_port = target.listening.has_rendezvous ? options_.port : 0;
      one.ephemeral_port = target.listening.ephemeral_port;
      one.timeout_s = std::chrono::duration<double>(options_.timeout).count();
      asks.emplace_back(from, one);
      tried.push_back({.from = from, .to = to, .address = target.address});
    }
    ask(asks, steps_of_pair * options_.timeout + listen_most, "a connection");
    for (const PairFacts& pair : tried) {
      const Visited& from = at(pair.from);
      auto measured = from.answer ? read_pair_facts(*from.answer) : std::nullopt;
      if (!measured) continue;
      measured->from = pair.from;
      measured->to = pair.to;
      measured->address = pair.address;
      report_.pairs.push_back(std::move(*measured));
    }
  }
}

// So that nothing runs on any host, and no copy of us lies there, when we end.
void DoctorVisit::say_goodbye() {
  for (const auto& host : hosts_) {
    if (!host->gone) host->connection->send("bye\n");
    host->gone = true;
  }
  const auto until = Clock::now() + goodbye_most;
  const auto runs = [](const auto& host) { return host->connection != nullptr && !host->ended; };
  while (std::any_of(hosts_.begin(), hosts_.end(), runs) && Clock::now() < until) {
    io_.restart();
    io_.run_one_until(until);
  }
}

void DoctorVisit::judge() {
  std::vector<ProbedHost> members;
  std::vector<std::string> names;
  Findings& all = report_.findings;
  const auto add = [&](Findings more) {
    all.insert(all.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  };
  for (int i = 0; i < count(); ++i) {
    Visited& host = at(i);
    names.push_back(host.host.name);
    if (host.facts) {
      add(examine_machine(*host.facts,
                          {i, host.host.name, report_.alone, host.address, host.address_reason}));
      members.push_back(
          {i, host.host.name, host.address, host.clock_ahead_s, host.clock_error_s, *host.facts});
    }
    report_.hosts.push_back({host.host, std::move(host.facts)});
  }
  add(compare_machines(members));
  add(examine_pairs(report_.pairs, names, options_.port));
}

DoctorReport DoctorVisit::examine() {
  greet_all();
  if (!report_.alone) ask_clocks();
  ask_facts();
  choose_addresses();
  if (!report_.alone) {
    open_ports();
    measure_pairs();
  }
  say_goodbye();
  show_progress("");
  judge();
  return std::move(report_);
}

void write_hostfile(const std::string& path, const DoctorReport& report) {
  const std::string text = hostfile_text(report);
  if (text.empty()) {
    throw std::runtime_error("no host is left that could form a job: " + path + " is not written");
  }
  const std::string problem = write_whole_file(path, text);
  if (!problem.empty()) throw std::runtime_error("cannot write " + path + ": " + problem);
}

}  // namespace

int run_doctor(const DoctorOptions& options, const std::string& launcher_path,
               const std::string& platform) {
  ::signal(SIGPIPE, SIG_IGN);
  DoctorReport report = DoctorVisit(options, launcher_path).examine();
  report.platform = platform;
  if (options.json) {
    std::fputs(report_json(report).c_str(), stdout);
  } else if (options.brief) {
    std::fputs(report_brief(report).c_str(), stdout);
  } else {
    const bool colors = use_color(options.color, isatty(STDOUT_FILENO) != 0,
                                  environment_variable("NO_COLOR"), environment_variable("TERM"));
    std::fputs(report_text(report, colors).c_str(), stdout);
  }
  std::fflush(stdout);
  if (!options.write_hostfile.empty()) write_hostfile(options.write_hostfile, report);
  return worst_of(report.findings) == Finding::Level::Red ? 1 : 0;
}

}  // namespace ddprun::launcher
