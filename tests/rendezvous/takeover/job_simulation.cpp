// The simulated world. A process is an agent with all that it hosts; events belong to a process, so
// that a frozen one finds all of them when it thaws, or to the world.
#include "tests/rendezvous/takeover/job_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "launcher/agent_state.h"
#include "launcher/membership/coordinator_search.h"
#include "rendezvous/arbiter/claimant.h"
#include "rendezvous/job/job.h"
#include "rendezvous/takeover/takeover.h"
#include "tests/rendezvous/takeover/arbiter.h"
#include "tests/rendezvous/takeover/chance.h"
#include "tests/rendezvous/takeover/network.h"
#include "tests/rendezvous/takeover/node_workers.h"
#include "tests/rendezvous/takeover/round_history.h"
#include "tests/rendezvous/takeover/schedule.h"

namespace ddprun::simulation {
namespace {

using namespace rendezvous;
using namespace std::chrono_literals;
using launcher::AgentAction;
using launcher::AgentState;
using launcher::AgentStateMachine;
using launcher::AgentStep;
using launcher::SearchStep;

// Shorter than the defaults, in about the same proportions: a run is over sooner.
constexpr Milliseconds heartbeat_interval{400};
constexpr Milliseconds heartbeat_timeout{2'000};
constexpr Milliseconds join_timeout{15'000};
constexpr Milliseconds all_notice = heartbeat_timeout + heartbeat_interval;
constexpr Milliseconds election_limit = 2 * all_notice + 5s;
constexpr Milliseconds question_limit{2'000};  // As vote_question.cpp has it.
constexpr Milliseconds progress_limit{120'000};
constexpr ClaimLimits claim_limits{.look_again = heartbeat_interval,
                                   .lapse = 2 * heartbeat_timeout};
constexpr Milliseconds word_limit{15'000};
constexpr Milliseconds grace{1'000};
const launcher::SearchLimits search_limits{.join_timeout = join_timeout,
                                           .election_limit = election_limit,
                                           .heartbeat_timeout = heartbeat_timeout,
                                           .may_be_taken_over = true};
const launcher::SpareLimits spare_limits{
    .settle = 100ms, .warm_up = 2s, .ready_by = 6s, .ready_by_least = 3s, .pause = 100ms};

struct Timer {
  std::optional<TimePoint> due;
  std::uint64_t generation = 0;
};

FirstCause cause_of_failure(bool ask_again) {
  if (!ask_again) return {.pid = 1, .signal = SIGSEGV};
  return {.pid = 1, .exit_code = exit_status::preempted, .retriable = false};
}

struct Process {
  int index = 0;
  int machine = 0;
  bool alive = true;
  TimePoint frozen_until;

  // launcher/agent.cpp
  AgentStateMachine agent{{.grace = grace}};
  RoundStart round;
  int own_signal = 0;
  std::optional<int> exit_status;
  Timer goodbye;
  int checks = 0;  // That were begun: the last one alone counts.
  bool unfit = false;
  // Its workers.
  bool workers = false;  // All run.
  bool reaping = false;  // Their end is on its way to the agent.
  int workers_round = nothing;
  bool ask_again = false;  // They have ended with 75.
  NodeWorkers local;
  Timer spare_tick;
  TimePoint spares_hang_until;         // Those that are started until then.
  std::map<int, TimePoint> spare_due;  // By place: when it will have got ready.

  // launcher/membership/membership.cpp
  launcher::CoordinatorSearch search{search_limits, ""};
  int lives = 0;  // How many takeovers it has had a part in.
  bool endpoint = false;
  bool left = false;
  Timer retry, knock;
  const std::string& node_id() const { return search.node_id(); }

  // launcher/membership/successor.cpp
  std::unique_ptr<Takeover> takeover;
  Timer takeover_tick;

  // launcher/membership/word_seeker.cpp
  Claimant claimant{claim_limits};
  Timer claim_tick;
  TimePoint arbiter_away_until;

  // rendezvous/control/control_client.cpp
  int client = nothing;  // A connection.
  Timer connecting, beat, answer;
  TimePoint connecting_since;
  Milliseconds pause{0};
  std::optional<Liveness> liveness;
  TimePoint next_beat;

  // rendezvous/coordinator.cpp
  std::optional<Job> job;
  std::optional<int> ended_with;  // The job, as far as its actions were carried out.
  std::map<PeerId, int> peers;
  PeerId next_peer = 1;
  Timer job_tick, linger;

  // For the checks.
  int job_number = nothing;   // Which job it coordinates: the process that began it.
  int job_round = nothing;    // The last one of its job.
  int known_round = nothing;  // The one that the last succession was about.
  int term = 0;               // That it leads in ...
  int term_followed = 0;      // ... and the highest one in which it was a member.
  // With so many workers it can begin the next round, it has said since the last one began. Whose
  // parked workers end after it was reaped says so twice, and the second word may cross the round.
  std::set<int> offered;
};

class World {
 public:
  World(const Scenario& scenario, Planted planted, bool tell)
      : scenario_(scenario),
        planted_(planted),
        tell_(tell),
        chance_(scenario.seed * 2 + 1),
        network_(schedule_, chance_, [this](int connection, Way way, const Line& line) {
          const Connection& through = network_[connection];
          if (way == Way::Up) return server_reads(at_index(through.server), connection, line);
          client_reads(at_index(through.client), connection, line);
        }) {}

  Outcome run();

 private:
  // The world.
  TimePoint now() const { return schedule_.now(); }
  void at(TimePoint time, int process, std::function<void()> happen) {
    schedule_.at(time, process, std::move(happen));
  }
  void after(Milliseconds delay, int process, std::function<void()> happen) {
    schedule_.after(delay, process, std::move(happen));
  }
  void arm(Process& process, Timer Process::*timer, std::optional<TimePoint> due,
           void (World::*fire)(Process&));
  Milliseconds between(int least, int most) {
    return Milliseconds(
        least + static_cast<int>(chance_.below(static_cast<std::size_t>(most - least) + 1)));
  }
  void violated(const std::string& what);
  void tell(const Process& process, const std::string& what);
  void cause(const Fault& fault);
  Process* living(int machine);
  void start_agent(int machine);
  void join(Process& process);
  void die(Process& process, bool silently);
  bool at_peace() const;

  // What comes from the network, and goes to it.
  Process& at_index(int process) { return processes_[static_cast<std::size_t>(process)]; }
  const Process& at_index(int process) const {
    return processes_[static_cast<std::size_t>(process)];
  }
  void client_reads(Process& process, int connection, const Line& line);
  void server_reads(Process& process, int connection, const Line& line);
  void send_up(const Process& process, const ControlMessage& message) {
    network_.send(process.client, Way::Up, {.message = message});
  }
  void try_to_connect(Process& process);
  void close_client(Process& process);
  void connect_again(Process& process);
  void ask(Process& from, const AskSeat& question);
  void tell_seat(Process& from, int target);

  // launcher/agent.cpp, and its workers.
  void apply(Process& process, const AgentStep& step);
  // As Agent::machine().
  AgentStateMachine& machine(Process& process) {
    process.agent.workers_kept(process.local.kept() > 0);
    return process.agent;
  }
  void when_fit(Process& process, std::function<void()> go_on);
  void start_workers(Process& process);
  void stop_workers(Process& process, launcher::Keep keep);
  void fail_worker(Process& process);
  void tell_other_workers(const Process& process);
  int workers_on(const Process& process) const {
    return (scenario_.workers_min > 0 ? 2 : 1) + process.machine % 3;
  }
  void look_at_spares(Process& process);
  void warm_up(Process& process, int place);
  void look_whether_it_can_grow(Process& process);
  void workers_end(Process& process);
  void all_reaped(Process& process);
  void end(Process& process, int status, Milliseconds linger);
  void agent_lost(Process& process, bool silent);
  void agent_hears(Process& process, const ControlMessage& message);
  void goodbye_overdue(Process& process) { apply(process, machine(process).leaving_overdue()); }
  void round_done(int round);
  bool may_rejoin(const Process& process) const {
    return !leads(process) && process.own_signal == 0 && !process.unfit;
  }

  // launcher/membership/membership.cpp and launcher/membership/successor.cpp
  static std::string next_name(const Process& process);
  void renew_takeover(Process& process, Milliseconds give_up);
  void rejoin(Process& process);
  Hello hello(const Process& process) const;
  void connect(Process& process);
  void member_hears(Process& process, const Line& line);
  void member_lost(Process& process, const std::string& why, bool silent);
  void say(Process& process, const ControlMessage& message);
  static void note_offer(Process& process, const ControlMessage& message) {
    const auto* reaped = std::get_if<Reaped>(&message);
    if (reaped != nullptr && reaped->nproc > 0) process.offered.insert(reaped->nproc);
  }
  void carry_out(Process& process, const TakeoverActions& actions);
  void lead(Process& process, const Lead& elected);
  bool leads(const Process& process) const {
    return process.endpoint && process.job && !process.job->stepped_down();
  }
  void follow(Process& process, const Seat& coordinator);
  void carry_out(Process& process, const SearchStep& step);
  void look_for_leader(Process& process);
  void stand_by(Process& process);
  void hand_over(Process& process);
  void go_where(Process& process, const Seat& coordinator);
  void give_way(Process& process, const Seat& leader);
  Vote on_leads(Process& process, const Leads& message);
  void knock(Process& process);
  Seat own_seat(const Process& process) const;
  void tick_takeover(Process& process) { carry_out(process, process.takeover->on_tick(now())); }

  // launcher/membership/word_seeker.cpp, and an arbiter.
  void want_word(Process& process, const WordWish& wish);
  void run_claimant(Process& process);
  void no_more_words(Process& process) {
    process.claimant.drop();
    run_claimant(process);
  }
  ArbiterReply arbitrate(const std::string& job, const std::string& node_id,
                         const ArbiterTask& task);
  void hears_word(Process& process, const Word& word);

  // rendezvous/control/control_client.cpp
  void lost(Process& process, const std::string& why, bool silent);
  void beat(Process& process);
  void unreachable(Process& process);

  // rendezvous/coordinator.cpp
  JobLimits job_limits(const Process& process) const;
  void carry_out(Process& process, const JobActions& actions);
  void dismiss(Process& process, PeerId peer);
  void tick_job(Process& process) { carry_out(process, process.job->on_tick(now())); }
  void check_idle(Process& process);
  void linger_over(Process& process) { die(process, false); }
  void close_round(Process& process, const JobActions& actions);
  void forget_quorum(Process& process, const std::string& node_id);
  void repeat_old_words(Process& process, PeerId peer, const Started& up);

  const Scenario& scenario_;
  Planted planted_;
  bool tell_;
  Chance chance_;
  const TimePoint start_ = TimePoint() + 1h;
  Schedule schedule_{start_};
  Network network_;
  std::deque<Process> processes_;  // Also those that have ended: an index is never used twice.
  Arbiter arbiter_;
  RoundHistory history_;
  std::set<int> unfit_machines_;
  bool succeeded_ = false;
  Outcome outcome_;
};

// ---- the world ----

Outcome World::run() {
  for (int machine = 0; machine < scenario_.nodes; ++machine) {
    after(machine == 0 ? 0ms : between(0, 300), nothing, [this, machine] { start_agent(machine); });
  }
  TimePoint calm = start_ + 1s;
  for (const Fault& fault : scenario_.faults) {
    at(start_ + fault.at, nothing, [this, &fault] { cause(fault); });
    calm = std::max(calm, start_ + fault.at + fault.lasts);
  }
  calm += 2 * heartbeat_timeout;
  TimePoint look = calm;
  while (!schedule_.empty() && outcome_.violation.empty()) {
    Schedule::Event event = schedule_.next();
    if (now() >= look) {
      if (at_peace()) break;
      look = now() + 100ms;
    }
    if (now() > calm + progress_limit) {
      violated("no progress although nothing fails any more");
      break;
    }
    if (event.process != nothing) {
      const Process& process = at_index(event.process);
      if (!process.alive) continue;
      if (process.frozen_until > now()) {
        at(process.frozen_until + between(0, 1), event.process, std::move(event.happen));
        continue;
      }
    }
    ++outcome_.events;
    event.happen();
    if (!history_.violation().empty()) violated(history_.violation());
  }
  if (outcome_.violation.empty() && schedule_.empty() && !at_peace())
    violated("all wait for nothing");
  outcome_.ran_on = history_.running() != nothing || succeeded_;
  return outcome_;
}

void World::arm(Process& process, Timer Process::*timer, std::optional<TimePoint> due,
                void (World::*fire)(Process&)) {
  Timer& armed = process.*timer;
  if (armed.due == due) return;
  armed.due = due;
  const std::uint64_t generation = ++armed.generation;
  if (!due) return;
  at(std::max(*due, now()), process.index, [this, &process, timer, generation, fire] {
    Timer& fired = process.*timer;
    if (fired.generation != generation) return;
    fired.due.reset();
    (this->*fire)(process);
  });
}

void World::violated(const std::string& what) {
  if (!outcome_.violation.empty()) return;
  outcome_.violation = fmt::format(
      "at {:.3f} s: {}",
      static_cast<double>(std::chrono::duration_cast<Milliseconds>(now() - start_).count()) / 1'000,
      what);
  if (tell_) outcome_.story.push_back(outcome_.violation);
}

void World::tell(const Process& process, const std::string& what) {
  if (!tell_) return;
  outcome_.story.push_back(fmt::format(
      "{:7.3f} {:>4} {}",
      static_cast<double>(std::chrono::duration_cast<Milliseconds>(now() - start_).count()) / 1'000,
      process.node_id(), what));
}

Process* World::living(int machine) {
  for (Process& process : processes_) {
    if (process.machine == machine && process.alive) return &process;
  }
  return nullptr;
}

void World::start_agent(int machine) {
  Process& process = processes_.emplace_back();
  process.index = static_cast<int>(processes_.size()) - 1;
  process.machine = machine;
  network_.add_process(machine);
  if (scenario_.checks) process.agent = AgentStateMachine{{.grace = grace, .checks_node = true}};
  if (scenario_.workers_min > 0) {
    launcher::SpareLimits limits = spare_limits;
    if (planted_ == Planted::WaitsForSpare) limits.ready_by.reset();
    process.local = NodeWorkers(workers_on(process), scenario_.workers_min, limits);
  }
  process.search = {search_limits, next_name(process)};
  renew_takeover(process, election_limit);
  when_fit(process, [this, &process] { join(process); });
}

void World::join(Process& process) {
  process.endpoint = process.machine == 0;
  if (process.endpoint) {
    process.takeover->leads();
    process.agent.endpoint_opened();
    process.job_number = process.index;
    process.job.emplace(job_limits(process), now());
    history_.leads(process.job_number, 0, process.node_id());
    carry_out(process, JobActions{});
  }
  process.search.begins(now());
  connect(process);
}

void World::cause(const Fault& fault) {
  using enum Fault::Kind;
  const auto cut_off = [&](int from, int to) { network_.cut(from, to, now() + fault.lasts); };
  Process* process = living(fault.node);
  if (process) tell(*process, "---- " + to_text(fault));
  switch (fault.kind) {
    case Cut:
      return cut_off(fault.node, fault.other);
    case Isolate:
      for (int other = 0; other < scenario_.nodes; ++other) {
        if (other == fault.node) continue;
        cut_off(fault.node, other);
        cut_off(other, fault.node);
      }
      return;
    case Restart:
      if (process) return;
      network_.power_returns(fault.node);
      return start_agent(fault.node);
    default:
      break;
  }
  if (process == nullptr) return;
  switch (fault.kind) {
    case Crash:
      return die(*process, false);
    case PowerOff:
      return die(*process, true);
    case NoArbiter:
      process->arbiter_away_until = std::max(process->arbiter_away_until, now() + fault.lasts);
      return;
    case Freeze:
      process->frozen_until = std::max(process->frozen_until, now() + fault.lasts);
      return;
    case Break:
      return network_.reset(process->index);
    case FailWorker:
      return fail_worker(*process);
    case Unfit:
      unfit_machines_.insert(process->machine);
      return;
    case HangReplacement:
      process->spares_hang_until = std::max(process->spares_hang_until, now() + fault.lasts);
      return;
    case Preempt:
      return at(now(), process->index, [this, process] {
        if (process->own_signal == 0) process->own_signal = SIGTERM;
        tell_other_workers(*process);
        apply(*process, machine(*process).signal_received(SIGTERM, process->client != nothing));
      });
    default:
      return;
  }
}

// Its workers end with it: they are told of its end by the kernel.
void World::die(Process& process, bool silently) {
  if (!process.alive) return;
  process.alive = false;
  workers_end(process);
  if (!silently) network_.close_all(process.index);
}

bool World::at_peace() const {
  const auto at_work = [&](const Process& process) {
    return process.workers && process.workers_round == history_.running() && process.local.whole();
  };
  const auto stands_by = [&](const Process& process) {
    if (process.workers || process.client == nothing || history_.running() == nothing) return false;
    const Connection& connection = network_[process.client];
    const Process& server = at_index(connection.server);
    return server.alive && server.job && server.job_round == history_.running();
  };
  return std::all_of(processes_.begin(), processes_.end(), [&](const Process& process) {
    return !process.alive || process.exit_status || at_work(process) || stands_by(process);
  });
}

// ---- the network ----

void World::try_to_connect(Process& process) {
  const Process* const first = living(0);
  const Seat* const seat = process.search.target();
  const int target = process.endpoint   ? process.index
                     : seat != nullptr  ? seat->port - 1
                     : first != nullptr ? first->index
                                        : nothing;
  const Milliseconds limit = process.search.patience(process.connecting_since);
  const auto reaches = [&](const Process& server) {
    return server.alive && network_.joins(process.index, server.index);
  };
  if (target != nothing && reaches(at_index(target))) {
    Process& server = at_index(target);
    const PeerId peer = server.next_peer++;
    process.client = network_.connect(process.index, target, peer);
    server.peers[peer] = process.client;
    arm(process, &Process::answer, process.connecting_since + limit, &World::unreachable);
    const Hello said = hello(process);
    process.offered = {said.nproc};
    return send_up(process, said);
  }
  if (now() - process.connecting_since >= limit) return unreachable(process);
  arm(process, &Process::connecting, now() + process.pause, &World::try_to_connect);
  process.pause = std::min<Milliseconds>(2 * process.pause, 1s);
}

void World::close_client(Process& process) {
  arm(process, &Process::connecting, {}, nullptr);
  arm(process, &Process::beat, {}, nullptr);
  arm(process, &Process::answer, {}, nullptr);
  process.liveness.reset();
  if (process.client == nothing) return;
  const int connection = std::exchange(process.client, nothing);
  network_[connection].client_closed = true;
  network_.send_end(connection, Way::Up);
}

void World::connect_again(Process& process) {
  close_client(process);
  arm(process, &Process::connecting, now() + process.pause, &World::try_to_connect);
  process.pause = std::min<Milliseconds>(2 * process.pause, 1s);
}

// A question and its answer have a connection for themselves. Either may be late, but nobody waits
// for an answer for longer than the limit.
void World::ask(Process& from, const AskSeat& question) {
  const int target = question.seat.port - 1;
  const TimePoint limit = now() + question_limit;
  const int life = from.lives;
  Process& to = at_index(target);
  if (!to.alive || !network_.joins(from.index, to.index)) return;
  after(network_.delay(), target, [this, &from, &to, question, limit, life] {
    if (network_.is_cut(from.index, to.index)) return;
    AskVote ask = question.ask;
    if (planted_ == Planted::IgnoresOlderRound) ask.heard_term = 1'000;
    const bool has_led = to.endpoint && !leads(to);
    Vote vote = has_led ? Vote{} : to.takeover->on_ask(ask, now());
    const bool same_term = vote.term == ask.term && vote.coordinator.node_id.empty();
    if (planted_ == Planted::VotesTwice && same_term && !ask.candidate.empty()) vote.granted = true;
    if (vote.granted) {
      tell(to, fmt::format("votes for {} in term {}", ask.candidate, ask.term));
      arm(to, &Process::takeover_tick, to.takeover->next_tick(), &World::tick_takeover);
    }
    if (network_.is_cut(to.index, from.index)) return;
    after(network_.delay(), from.index, [this, &from, question, vote, limit, life] {
      if (now() > limit || from.lives != life) return;
      carry_out(from, from.takeover->on_vote(question.seat.node_id, vote, now()));
    });
  });
}

// The other word that has a connection for itself.
void World::tell_seat(Process& from, int target) {
  Process& to = at_index(target);
  if (!to.alive || !network_.joins(from.index, to.index)) return;
  const Leads word{"job", from.term, own_seat(from)};
  after(network_.delay(), target, [this, &from, &to, word] {
    if (network_.is_cut(from.index, to.index)) return;
    const Vote vote = on_leads(to, word);
    if (network_.is_cut(to.index, from.index)) return;
    after(network_.delay(), from.index, [this, &from, vote] {
      if (vote.term > from.term && !vote.coordinator.address.empty()) {
        give_way(from, vote.coordinator);
      }
    });
  });
}

// ---- the agent ----

void World::apply(Process& process, const AgentStep& step) {
  if (tell_ && !step.actions.empty()) tell(process, "agent: " + step.reason);
  for (const AgentAction action : step.actions) {
    switch (action) {
      case AgentAction::StartWorkers:
        start_workers(process);
        break;
      case AgentAction::StopWorkers:
      case AgentAction::KillWorkers:
        stop_workers(process, launcher::Keep::Nobody);
        break;
      case AgentAction::HoldWorkers:
        stop_workers(process, launcher::Keep::Held);
        break;
      case AgentAction::ParkWorkers:
        stop_workers(process, launcher::Keep::Parking);
        break;
      case AgentAction::ReportFailure:
        say(process, WorkerFailed{.attempt = process.round.attempt,
                                  .cause = cause_of_failure(process.ask_again),
                                  .term = process.round.term});
        break;
      case AgentAction::ReportSucceeded:
        say(process, WorkersSucceeded{process.round.attempt, process.round.term});
        break;
      case AgentAction::ReportReaped:
        say(process, Reaped{.attempt = process.round.attempt,
                            .cause = {},
                            .term = process.round.term,
                            .nproc = process.local.at_once()});
        break;
      case AgentAction::ReportCanGrow:
        say(process, CanGrow{process.round.attempt, process.round.term, workers_on(process)});
        break;
      case AgentAction::CheckNode:
        when_fit(process, [this, &process] { apply(process, machine(process).node_is_fit()); });
        break;
      case AgentAction::Rejoin:
        when_fit(process, [this, &process] {
          if (process.agent.state() != AgentState::Joining) return;
          at(now(), process.index, [this, &process] { rejoin(process); });
        });
        break;
      case AgentAction::SayLeaving:
        say(process, process.unfit ? Leaving{SIGTERM, "sick"} : Leaving{process.own_signal});
        break;
      case AgentAction::AwaitVerdict:
        arm(process, &Process::goodbye, now() + step.verdict_limit, &World::goodbye_overdue);
        break;
      case AgentAction::Exit:
        return end(process, step.exit_status, step.linger);
    }
  }
}

void World::when_fit(Process& process, std::function<void()> go_on) {
  if (!scenario_.checks) return go_on();
  const int check = ++process.checks;
  after(between(1, chance_.one_in(6) ? 3'000 : 60), process.index,
        [this, &process, check, go_on = std::move(go_on)] {
          if (process.exit_status || process.checks != check) return;
          if (!unfit_machines_.contains(process.machine)) return go_on();
          tell(process, "is not fit");
          process.unfit = true;
          apply(process, machine(process).node_is_unfit(process.client != nothing));
        });
}

void World::start_workers(Process& process) {
  const bool all = planted_ == Planted::KeepsItsWorkers;
  if (process.local.may_be_fewer()) {
    process.local.start(all ? workers_on(process) : process.round.nproc, now());
  }
  process.workers = true;
  process.reaping = process.ask_again = false;
  process.workers_round = process.known_round;
  say(process, Started{process.round.attempt, process.round.term});
  const int round = process.workers_round;
  const int workers = process.local.may_be_fewer() ? process.local.workers() : process.round.nproc;
  const bool complete =
      history_.workers_started(round, {process.index, process.round.rank_base, workers});
  if (complete && scenario_.work > 0ms) {
    after(scenario_.work, nothing, [this, round] { round_done(round); });
  }
  if (!process.local.may_be_fewer()) return;
  look_at_spares(process);
  look_whether_it_can_grow(process);
}

void World::stop_workers(Process& process, launcher::Keep keep) {
  if (process.local.may_be_fewer()) {
    if (!process.local.active() && process.local.stop(keep)) process.reaping = false;
    process.local.stop(keep);
    if (!process.local.active()) return;
    // Who holds its workers waits for the verdict, and for no longer than their grace.
    if (process.local.keep() == launcher::Keep::Held) {
      return after(grace, process.index, [this, &process] {
        if (process.local.keep() == launcher::Keep::Held) {
          stop_workers(process, launcher::Keep::Nobody);
        }
      });
    }
  }
  if (process.reaping) return;
  process.reaping = true;
  after(between(2, chance_.one_in(6) ? 900 : 60), nothing, [this, &process] {
    if (!process.alive) return;
    workers_end(process);
    at(now(), process.index, [this, &process] {
      if (process.local.may_be_fewer()) process.local.end(/*late=*/chance_.one_in(16));
      all_reaped(process);
    });
  });
}

void World::fail_worker(Process& process) {
  if (process.local.may_be_fewer()) process.local.die(chance_.below(8));
  if (!process.workers) return;  // One that was parked.
  workers_end(process);
  at(now(), process.index, [this, &process] { apply(process, machine(process).worker_failed()); });
}

// Workers agree on a stop among themselves: on the other nodes they may end with 75 before their
// agents hear of one, and before the coordinator does.
void World::tell_other_workers(const Process& process) {
  if (!process.workers || process.local.may_be_fewer()) return;
  const int round = process.workers_round;
  for (Process& other : processes_) {
    if (&other == &process || !other.workers || other.workers_round != round) continue;
    after(between(1, 900), nothing, [this, &other, round] {
      if (!other.alive || !other.workers || other.reaping || other.workers_round != round) return;
      other.ask_again = true;
      fail_worker(other);
    });
  }
}

// ---- the agent's spares: launcher/workers/spare_pool.cpp ----

void World::look_at_spares(Process& process) {
  launcher::SparePlan& plan = process.local.spares();
  while (const auto late = plan.overdue(now())) {
    const auto due = process.spare_due.find(*late);
    if (due != process.spare_due.end() && due->second <= now()) {  // The word has been here.
      plan.ready(*late, now());
    } else {
      plan.ended(*late, false, now());
    }
    process.spare_due.erase(*late);
  }
  while (const auto place = plan.next(now())) warm_up(process, *place);
  arm(process, &Process::spare_tick, plan.due(now()), &World::look_at_spares);
  look_whether_it_can_grow(process);
}

void World::warm_up(Process& process, int place) {
  process.local.spares().started(place, now());
  process.spare_due.erase(place);
  if (process.spares_hang_until > now()) return;
  const bool dies = chance_.one_in(8);
  const TimePoint due = process.spare_due[place] =
      now() + between(100, chance_.one_in(8) ? 5'000 : 900);
  if (dies) process.spare_due.erase(place);
  at(due, process.index, [this, &process, place, due, dies] {
    launcher::SparePlan& plan = process.local.spares();
    const auto found = process.spare_due.find(place);
    if (dies) {
      plan.ended(place, false, now());
    } else if (found != process.spare_due.end() && found->second == due) {
      process.spare_due.erase(found);
      plan.ready(place, now());
    }
    look_at_spares(process);
  });
}

void World::look_whether_it_can_grow(Process& process) {
  if (!process.workers || process.reaping || !process.local.asks_to_grow()) return;
  tell(process, "could have all of its workers");
  ++outcome_.grown;
  apply(process, machine(process).replacements_ready());
}

void World::workers_end(Process& process) {
  if (!process.workers) return;
  process.workers = false;
  history_.workers_ended(process.workers_round);
}

// Workers of a round succeed together: the last step needs all of them.
void World::round_done(int round) {
  if (history_.running() != round) return;
  for (const int member : history_.members(round)) {
    Process& process = at_index(member);
    if (process.reaping) continue;
    process.reaping = true;
    if (process.local.may_be_fewer()) {
      process.local.stop(launcher::Keep::Nobody);
      process.local.end(/*late=*/false);
    }
    workers_end(process);
    after(between(0, 50), process.index, [this, &process] { all_reaped(process); });
  }
  succeeded_ = true;
}

void World::all_reaped(Process& process) {
  const bool succeeded = process.agent.state() == AgentState::Running;
  apply(process,
        succeeded ? machine(process).workers_succeeded() : machine(process).workers_reaped());
}

void World::end(Process& process, int status, Milliseconds linger) {
  if (process.exit_status) return;
  tell(process, fmt::format("ends with {}", status));
  if (process.workers) violated(process.node_id() + " leaves its workers alone");
  process.exit_status = status;
  process.left = true;
  arm(process, &Process::goodbye, {}, nullptr);
  at(now(), process.index, [this, &process, linger] {
    close_client(process);
    if (!process.endpoint) return die(process, false);
    arm(process, &Process::linger, now() + linger, &World::linger_over);
    check_idle(process);
  });
}

void World::agent_lost(Process& process, bool silent) {
  apply(process, silent && may_rejoin(process) ? machine(process).cut_off()
                                               : machine(process).coordinator_lost());
}

void World::agent_hears(Process& process, const ControlMessage& message) {
  if (const auto* round = std::get_if<RoundStart>(&message)) {
    process.round = *round;
    tell(process, fmt::format("starts attempt {} as {} of {} with {} workers, term {}",
                              round->attempt, round->group_rank, round->group_world_size,
                              round->nproc, process.search.round().succession().term));
    if (!process.offered.contains(round->nproc)) {
      violated(fmt::format("{} is to start {} workers, and has never said that it can",
                           process.node_id(), round->nproc));
    }
    process.offered = {round->nproc};
    apply(process, machine(process).round_started());
  } else if (const auto* stop = std::get_if<Stop>(&message)) {
    apply(process, machine(process).stop_received(
                       stop->signal,
                       stop->final_verdict ? std::optional<int>(stop->exit_status) : std::nullopt));
  } else if (const auto* finish = std::get_if<Finish>(&message)) {
    tell(process, "hears the end: " + finish->why);
    const bool rejoins = finish->may_rejoin && may_rejoin(process);
    apply(process, rejoins ? machine(process).cut_off()
                           : machine(process).finish_received(finish->exit_status));
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    tell(process, "is refused: " + refused->reason);
    apply(process, machine(process).refused(refused->exit_status));
  }
}

// ---- membership ----

// Another one each time: a new name goes with a new takeover.
std::string World::next_name(const Process& process) {
  return fmt::format("{}.{}{}", process.machine, process.index,
                     std::string(static_cast<std::size_t>(process.lives), '\''));
}

void World::renew_takeover(Process& process, Milliseconds give_up) {
  TakeoverLimits limits;
  limits.all_notice = all_notice;
  limits.give_up = give_up;
  limits.arbitration = scenario_.arbitration;
  limits.ask_arbiter_after = heartbeat_interval;
  limits.arbiter_give_up = limits.give_up + word_limit;
  no_more_words(process);
  ++process.lives;
  process.takeover = std::make_unique<Takeover>("job", process.node_id(), limits);
  arm(process, &Process::takeover_tick, {}, nullptr);
}

void World::carry_out(Process& process, const SearchStep& step) {
  using Then = SearchStep::Then;
  if (step.asks_members) look_for_leader(process);
  switch (step.then) {
    case Then::Nothing:
      return;
    case Then::Connect:
      if (step.pause == 0ms) return connect(process);
      return arm(process, &Process::retry, now() + step.pause, &World::connect);
    case Then::Elect:
      return carry_out(process, process.takeover->coordinator_lost(now()));
    case Then::ElectLeaver:
      return carry_out(process, process.takeover->coordinator_hands_over(now()));
    case Then::Unreachable:
      tell(process, step.why);
      close_client(process);
      return apply(process, machine(process).unreachable());
    case Then::Lost:
      return agent_lost(process, step.silent);
  }
}

void World::rejoin(Process& process) {
  if (process.left) return;
  const bool hosted = process.endpoint;
  if (hosted) {
    stand_by(process);
    process.agent.endpoint_closed();
  }
  const SearchStep step = process.search.joins_again(next_name(process), hosted, now());
  tell(process, "joins again");
  carry_out(process, step);
}

void World::look_for_leader(Process& process) {
  renew_takeover(process, join_timeout);
  const Succession& last = process.search.round().succession();
  if (last.round.attempt < 0) return;
  process.takeover->heard(last);
  carry_out(process, process.takeover->coordinator_lost(now()));
}

void World::stand_by(Process& process) {
  process.job.reset();
  process.ended_with.reset();
  arm(process, &Process::job_tick, {}, nullptr);
  process.endpoint = false;
  renew_takeover(process, election_limit);
}

void World::hand_over(Process& process) {
  const bool led = process.endpoint;
  if (led) {
    stand_by(process);
    process.takeover->heard(process.search.round().succession());
  }
  carry_out(process, process.search.hands_over(led));
}

void World::go_where(Process& process, const Seat& coordinator) {
  const bool hosted = process.endpoint;
  if (hosted) {
    stand_by(process);
    process.agent.endpoint_closed();
  }
  carry_out(process, process.search.goes_where(coordinator, hosted, now()));
}

Seat World::own_seat(const Process& process) const {
  return {process.node_id(), 0, "", fmt::format("host{}", process.machine), process.index + 1};
}

void World::knock(Process& process) {
  if (process.left || !leads(process)) return;
  if (const Process* first = living(0)) tell_seat(process, first->index);
  arm(process, &Process::knock, now() + heartbeat_interval, &World::knock);
}

Vote World::on_leads(Process& process, const Leads& message) {
  if (process.left || message.coordinator.node_id == process.node_id()) return {};
  if (planted_ == Planted::KeepsLeading && leads(process)) return {};
  if (leads(process) && message.term <= process.term) {
    return {.term = process.term, .granted = false, .coordinator = own_seat(process)};
  }
  at(now(), process.index, [this, &process, message] {
    if (process.left) return;
    if (leads(process)) return give_way(process, message.coordinator);
    if (process.search.believes(message.term)) return follow(process, message.coordinator);
    carry_out(process,
              process.takeover->on_vote(
                  "", {.term = message.term, .granted = false, .coordinator = message.coordinator},
                  now()));
  });
  return {};
}

void World::give_way(Process& process, const Seat& leader) {
  if (process.left || !leads(process)) return;
  tell(process, "gives way to " + leader.node_id);
  process.search.named(leader);
  carry_out(process, process.job->step_down("another one leads"));
}

void World::follow(Process& process, const Seat& coordinator) {
  if (process.left) return;
  const SearchStep step = process.search.follows(coordinator, process.endpoint);
  if (step.then == SearchStep::Then::Nothing) return;
  tell(process, "follows " + coordinator.node_id);
  carry_out(process, step);
}

Hello World::hello(const Process& process) const {
  Hello hello{.run_id = "job", .node_id = process.node_id()};
  hello.replaces = process.search.replaced_id();
  hello.host = fmt::format("host{}", process.machine);
  hello.address = hello.host;
  hello.nproc = workers_on(process);
  const launcher::RoundMemory& round = process.search.round();
  const int fewer = round.workers();
  if (process.search.resumes() && fewer > 0) hello.nproc = fewer;
  hello.elastic = scenario_.elastic;
  if (!scenario_.elastic) hello.node_rank = process.machine;
  hello.nnodes_min = scenario_.nodes_min;
  hello.nnodes_max = scenario_.nodes_max;
  hello.standby_port = process.index + 1;
  hello.term = round.succession().term;
  hello.attempt = round.succession().round.attempt;
  if (process.search.resumes()) hello.resumes = round.seat();
  return hello;
}

void World::connect(Process& process) {
  if (process.left) return;
  close_client(process);
  process.search.connects();
  arm(process, &Process::retry, {}, nullptr);
  process.connecting_since = now();
  process.pause = 50ms;
  arm(process, &Process::connecting, now() + between(0, 5), &World::try_to_connect);
}

void World::client_reads(Process& process, int connection, const Line& line) {
  if (process.client != connection) return;
  if (line.end) {
    const bool unanswered = !process.liveness && !process.search.is_sent_away() && !process.left;
    if (unanswered && !process.search.resumes()) return connect_again(process);
    return lost(process, "it closed the connection", false);
  }
  if (process.liveness) process.liveness->heard(now());
  if (std::holds_alternative<Heartbeat>(line.message)) return;
  if (std::holds_alternative<Welcome>(line.message)) {
    arm(process, &Process::answer, {}, nullptr);
    process.liveness.emplace(heartbeat_timeout, now());
    process.next_beat = now() + heartbeat_interval;
    arm(process, &Process::beat, std::min(process.next_beat, process.liveness->deadline()),
        &World::beat);
  }
  member_hears(process, line);
}

void World::unreachable(Process& process) {
  const std::string why = "reaches no coordinator";
  tell(process, why);
  close_client(process);
  carry_out(process, process.search.unreachable(why, process.endpoint, now()));
}

void World::lost(Process& process, const std::string& why, bool silent) {
  close_client(process);
  member_lost(process, why, silent);
}

void World::beat(Process& process) {
  const TimePoint due = std::min(process.next_beat, process.liveness->deadline());
  if (process.liveness->silent(now(), now() - due)) return lost(process, "it is silent", true);
  if (now() >= process.next_beat) {
    send_up(process, Heartbeat{});
    process.next_beat = now() + heartbeat_interval;
  }
  arm(process, &Process::beat, std::min(process.next_beat, process.liveness->deadline()),
      &World::beat);
}

void World::member_hears(Process& process, const Line& line) {
  if (process.left || !process.search.hears(line.message, now())) return;
  if (const auto* succession = std::get_if<Succession>(&line.message)) {
    process.known_round = line.round;
    process.term_followed = std::max(process.term_followed, line.term);
    if (outcome_.violation.empty()) process.takeover->heard(*succession);
    return;
  }
  if (const auto* moved = std::get_if<Moved>(&line.message)) {
    process.search.sent_away();
    return at(now(), process.index, [this, &process, to = moved->coordinator] {
      if (!process.left && process.search.is_sent_away()) go_where(process, to);
    });
  }
  if (std::holds_alternative<HandOver>(line.message)) {
    process.search.sent_away();
    return at(now(), process.index, [this, &process] {
      if (!process.left && process.search.is_sent_away()) hand_over(process);
    });
  }
  if (std::holds_alternative<Welcome>(line.message) && process.search.welcomed()) {
    for (const ControlMessage& message : process.search.round().said()) {
      note_offer(process, message);
      send_up(process, message);
    }
  }
  const bool is_round = std::holds_alternative<RoundStart>(line.message);
  if (is_round && (planted_ == Planted::TakesOldRound ? 0 : line.term) < process.term_followed) {
    violated(fmt::format("{} takes a round of term {}, and has followed term {}", process.node_id(),
                         line.term, process.term_followed));
  }
  agent_hears(process, line.message);
}

void World::member_lost(Process& process, const std::string& why, bool silent) {
  if (process.left) return;
  tell(process, "lost the coordinator: " + why);
  carry_out(process, process.search.lost(why, silent, process.endpoint, now()));
}

void World::say(Process& process, const ControlMessage& message) {
  process.search.says(message);
  note_offer(process, message);
  if (process.client != nothing) send_up(process, message);
}

void World::carry_out(Process& process, const TakeoverActions& actions) {
  const int life = process.lives;
  const auto soon = [&](auto happen) {
    at(now(), process.index, [&process, life, happen] {
      if (process.lives == life && !process.left) happen();
    });
  };
  for (const TakeoverAction& action : actions) {
    if (const auto* question = std::get_if<AskSeat>(&action)) {
      ask(process, *question);
    } else if (const auto* wanted = std::get_if<AskArbiter>(&action)) {
      want_word(process, wanted->wish);
    } else if (std::holds_alternative<StopAsking>(action)) {
      no_more_words(process);
    } else if (const auto* elected = std::get_if<Lead>(&action)) {
      history_.leads(history_.job_of(process.known_round), elected->term, process.node_id());
      soon([this, &process, elected = *elected] { lead(process, elected); });
    } else if (const auto* follow = std::get_if<Follow>(&action)) {
      soon([this, &process, to = follow->coordinator] { this->follow(process, to); });
    } else if (const auto* over = std::get_if<GiveUp>(&action)) {
      soon([this, &process, over = *over] {
        tell(process, "gives up: " + over.why);
        carry_out(process, process.search.gives_up(over));
      });
    }
  }
  arm(process, &Process::takeover_tick, process.takeover->next_tick(), &World::tick_takeover);
}

void World::lead(Process& process, const Lead& elected) {
  const int term = elected.term;
  tell(process, fmt::format("leads, term {}", term));
  ++outcome_.elections;
  process.endpoint = true;
  process.agent.endpoint_opened();
  const Inherited inherited = process.search.leads(elected, now());
  process.job_round = process.known_round;
  process.job_number = history_.job_of(process.job_round);
  process.term = term;
  process.job.emplace(job_limits(process), inherited, now());
  carry_out(process, process.job->take_over(inherited, now()));
  for (const Council* council : {&inherited.succession.council, &inherited.succession.before}) {
    for (const Seat& seat : *council) {
      if (seat.node_id != process.node_id()) tell_seat(process, seat.port - 1);
    }
  }
  knock(process);
  connect(process);
}

// ---- the arbiter ----

void World::want_word(Process& process, const WordWish& wish) {
  const bool unasked = (planted_ == Planted::KeepsUnasked && wish.keep) ||
                       (planted_ == Planted::NeedsNoWord && wish.leads);
  if (unasked) {
    return at(now(), process.index, [this, &process, wish] {
      hears_word(process, {.kind = wish.keep ? Word::Kind::Kept : Word::Kind::Given,
                           .rounds = wish.rounds,
                           .term = wish.term,
                           .holder = {},
                           .why = {}});
    });
  }
  const std::string host = fmt::format("host{}", process.machine);
  process.claimant.want(
      wish,
      {.node_id = process.node_id(), .host = host, .address = host, .port = process.index + 1},
      now());
  run_claimant(process);
}

// The task may be done although its answer never comes, and after its agent has ended.
void World::run_claimant(Process& process) {
  if (const auto task = process.claimant.next(now())) {
    const bool away = process.arbiter_away_until > now();
    const std::string job =
        process.job ? std::to_string(process.job_number) : process.search.round().succession().job;
    after(network_.delay(), nothing,
          [this, &process, task = *task, away, job, id = process.node_id()] {
            const bool lost = away || process.arbiter_away_until > now();
            ArbiterReply reply{.claims = {}, .why = "the arbiter is away"};
            if (!away) reply = arbitrate(job, id, task);
            if (lost) reply = {.claims = {}, .why = "the arbiter is away"};
            after(network_.delay(), process.index, [this, &process, reply] {
              if (const auto word = process.claimant.answered(reply, now()))
                hears_word(process, *word);
              run_claimant(process);
            });
          });
  }
  arm(process, &Process::claim_tick, process.claimant.next_tick(), &World::run_claimant);
}

ArbiterReply World::arbitrate(const std::string& job, const std::string& node_id,
                              const ArbiterTask& task) {
  ArbiterReply reply = arbiter_.answer(job, node_id, task);
  const bool others = reply.claims && reply.claims->last.holder.node_id != node_id;
  if (planted_ == Planted::LapsesKept && others) reply.claims->last.kept = false;
  return reply;
}

void World::hears_word(Process& process, const Word& word) {
  if (process.left) return;
  tell(process, fmt::format("hears of the arbiter: {}, term {}, {}{}", static_cast<int>(word.kind),
                            word.term, word.holder.node_id, word.why));
  if (!process.job) return carry_out(process, process.takeover->on_word(word, now()));
  process.term = std::max(process.term, word.term);
  if (word.kind == Word::Kind::Refused) process.search.named(word.holder);
  carry_out(process, process.job->on_word(word, now()));
}

// ---- the coordinator ----

JobLimits World::job_limits(const Process& process) const {
  JobLimits limits;
  limits.run_id = "job";
  limits.round = {.elastic = scenario_.elastic,
                  .nodes_min = scenario_.nodes_min,
                  .nodes_max = scenario_.nodes_max,
                  .join_timeout = join_timeout,
                  .last_call = 500ms,
                  .look_around = 2 * all_notice};
  limits.restarts.restarts_max = scenario_.restarts;
  limits.restarts.backoff_first = 50ms;
  limits.restarts.backoff_max = 400ms;
  limits.restarts.same_failures_max = 0;
  limits.heartbeat_interval = heartbeat_interval;
  limits.heartbeat_timeout = heartbeat_timeout;
  limits.start_timeout = 6s;
  limits.stop_timeout = 8s;
  limits.newcomers = {.settled = 10s, .cost_least = 30ms, .pause_max = 2s};
  limits.host_node_id = process.node_id();
  limits.master_addr = fmt::format("host{}", process.machine);
  limits.master_port = process.index + 1;
  limits.may_be_taken_over = true;
  limits.arbitration = scenario_.arbitration;
  limits.word_limit = word_limit;
  if (scenario_.arbitration != Arbitration::None) {
    limits.job = std::to_string(process.job_number);
    limits.round.look_around = all_notice + election_limit + word_limit;
  }
  return limits;
}

void World::server_reads(Process& process, int connection, const Line& line) {
  Connection& through = network_[connection];
  const PeerId peer = through.peer;
  if (line.end) {
    through.server_closed = true;
    process.peers.erase(peer);
    if (process.job)
      carry_out(process, process.job->on_lost(peer, "it closed the connection", now()));
    return check_idle(process);
  }
  if (through.dismissed) return;
  if (!process.job || process.job->stepped_down()) {
    network_.send(connection, Way::Down,
                  {.message = Moved{process.search.coordinator().value_or(Seat{})}});
    return dismiss(process, peer);
  }
  if (const auto* hello = std::get_if<Hello>(&line.message)) {
    if (planted_ == Planted::IgnoresQuorum) forget_quorum(process, hello->node_id);
  }
  if (const auto* up = std::get_if<Started>(&line.message)) repeat_old_words(process, peer, *up);
  carry_out(process, process.job->on_message(peer, line.message, now()));
}

// As a line would that the agent had kept from a round of the same number in an earlier term.
void World::repeat_old_words(Process& process, PeerId peer, const Started& up) {
  if (up.term == 0) return;
  const int term = planted_ == Planted::TakesOldWords ? up.term : up.term - 1;
  carry_out(process, process.job->on_message(peer, WorkersSucceeded{up.attempt, term}, now()));
  carry_out(process, process.job->on_message(peer,
                                             Reaped{.attempt = up.attempt,
                                                    .cause = {},
                                                    .term = term,
                                                    .nproc = scenario_.workers_min > 0 ? 7 : 0},
                                             now()));
  carry_out(process, process.job->on_message(peer, CanGrow{up.attempt, term, 8}, now()));
}

// Who is said to have gone does not count as out of sight. It is said of all before they come.
void World::forget_quorum(Process& process, const std::string& node_id) {
  const PeerId nobody = 1'000'000;
  Hello goodbye{.version = 0, .run_id = "job", .node_id = "nobody"};
  goodbye.replaces = node_id;
  carry_out(process, process.job->on_message(nobody, goodbye, now()));
}

void World::dismiss(Process& process, PeerId peer) {
  const auto found = process.peers.find(peer);
  if (found == process.peers.end()) return;
  if (std::exchange(network_[found->second].dismissed, true)) return;
  network_.send_end(found->second, Way::Down);
}

void World::carry_out(Process& process, const JobActions& actions) {
  std::vector<PeerId> told_round;
  for (const JobAction& action : actions) {
    if (const auto* sent = std::get_if<SendTo>(&action)) {
      const auto peer = process.peers.find(sent->peer);
      if (peer == process.peers.end()) continue;
      ControlMessage message = sent->message;
      if (auto* succession = std::get_if<Succession>(&message)) {
        if (succession->before.empty()) history_.settled(process.job_round);
      }
      if (std::holds_alternative<RoundStart>(message)) told_round.push_back(sent->peer);
      network_.send(
          peer->second, Way::Down,
          {.message = std::move(message), .round = process.job_round, .term = process.term});
    } else if (const auto* close = std::get_if<CloseAfterSending>(&action)) {
      dismiss(process, close->peer);
    } else if (const auto* wanted = std::get_if<AskForWord>(&action)) {
      want_word(process, wanted->wish);
    } else if (std::holds_alternative<StartAttempt>(action)) {
      close_round(process, actions);
    } else if (const auto* log = std::get_if<Log>(&action)) {
      tell(process, "job: " + log->text);
    }
  }
  const auto before = std::exchange(process.ended_with, process.job->ended_with());
  if (process.ended_with && !before) {
    tell(process, fmt::format("job: over, {}", *process.ended_with));
    if (process.ended_with == 0 && !succeeded_) violated("the job ended well, and no round had");
  }
  if (planted_ == Planted::SettlesTooEarly) {
    for (const PeerId peer : told_round) {
      carry_out(process,
                process.job->on_message(
                    peer, Started{process.job->attempt(), process.job->round().term}, now()));
    }
  }
  arm(process, &Process::job_tick, process.job->next_tick(), &World::tick_job);
}

// Before anybody hears of it.
void World::close_round(Process& process, const JobActions& actions) {
  std::vector<RoundHistory::Member> members;
  for (const JobAction& action : actions) {
    const auto* sent = std::get_if<SendTo>(&action);
    const auto* start = sent ? std::get_if<RoundStart>(&sent->message) : nullptr;
    if (start == nullptr) continue;
    const auto peer = process.peers.find(sent->peer);
    const int member = peer == process.peers.end() ? nothing : network_[peer->second].client;
    members.push_back({member, *start});
  }
  process.job_round =
      history_.closed(process.job_number, process.job_round, process.job->attempt(), members);
}

void World::check_idle(Process& process) {
  if (!process.left || !process.endpoint) return;
  const bool busy = std::any_of(process.peers.begin(), process.peers.end(),
                                [&](const auto& peer) { return !network_[peer.second].dismissed; });
  if (!busy) die(process, false);
}

}  // namespace

Outcome run(const Scenario& scenario, Planted planted, bool tell) {
  return World(scenario, planted, tell).run();
}

}  // namespace ddprun::simulation
