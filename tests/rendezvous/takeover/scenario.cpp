// Scenarios out of a seed, as text and smaller: what is done to the simulated job, which
// job_simulation.cpp is.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "tests/rendezvous/takeover/chance.h"
#include "tests/rendezvous/takeover/job_simulation.h"

namespace ddprun::simulation {
namespace {

struct Words {
  Fault::Kind kind;
  std::string_view name;
  bool lasts;
};
constexpr std::array<Words, 12> vocabulary{
    {{Fault::Kind::Cut, "cut", true},
     {Fault::Kind::Isolate, "isolate", true},
     {Fault::Kind::Break, "break", false},
     {Fault::Kind::Crash, "crash", false},
     {Fault::Kind::PowerOff, "power-off", false},
     {Fault::Kind::Restart, "restart", false},
     {Fault::Kind::Freeze, "freeze", true},
     {Fault::Kind::FailWorker, "fail-worker", false},
     {Fault::Kind::Preempt, "preempt", false},
     {Fault::Kind::NoArbiter, "no-arbiter", true},
     {Fault::Kind::Unfit, "unfit", false},
     {Fault::Kind::HangReplacement, "hang-replacement", true}}};

constexpr std::array<std::pair<rendezvous::Arbitration, std::string_view>, 2> arbiters{
    {{rendezvous::Arbitration::Halves, "halves"}, {rendezvous::Arbitration::Anyone, "anyone"}}};

std::string seconds_of(Milliseconds time) {
  return fmt::format("{:.3f} s", static_cast<double>(time.count()) / 1'000);
}

Milliseconds read_seconds(std::istream& in) {
  double seconds = -1;
  std::string unit;
  in >> seconds >> unit;
  if (!in || seconds < 0 || unit.substr(0, 1) != "s") throw std::invalid_argument("no time");
  return Milliseconds(std::lround(seconds * 1'000));
}

Fault read_fault(std::istream& in) {
  Fault fault;
  std::string word;
  fault.at = read_seconds(in);
  in >> word;
  const auto words = std::find_if(vocabulary.begin(), vocabulary.end(),
                                  [&](const Words& known) { return known.name == word; });
  if (words == vocabulary.end()) throw std::invalid_argument("no fault: " + word);
  fault.kind = words->kind;
  in >> fault.node;
  if (fault.kind == Fault::Kind::Cut) in >> word >> fault.other;
  if (words->lasts) {
    in >> word;
    fault.lasts = read_seconds(in);
  }
  if (!in) throw std::invalid_argument("a fault ends early");
  return fault;
}

// Most of what happens happens to the coordinator's node, or soon after something else.
Fault random_fault(Chance& chance, int nodes, Milliseconds after, bool all_reach_all) {
  using enum Fault::Kind;
  constexpr std::array kinds{Break, Crash, Crash, Crash,   PowerOff, PowerOff, FailWorker, Preempt,
                             Cut,   Cut,   Cut,   Isolate, Isolate,  Freeze,   Freeze};
  constexpr std::size_t first_cut = 8;
  Fault fault{.kind = kinds[chance.below(all_reach_all ? first_cut : kinds.size())]};
  fault.at = after + Milliseconds(chance.below(
                         std::array<std::size_t, 5>{1, 20, 300, 2'500, 2'500}[chance.below(5)]));
  const auto any = [&] { return static_cast<int>(chance.below(static_cast<std::size_t>(nodes))); };
  fault.node = chance.one_in(3) ? 0 : any();
  if (fault.kind == Cut) {
    do fault.other = any();
    while (fault.other == fault.node);
    if (chance.one_in(2)) std::swap(fault.node, fault.other);
  }
  const bool lasts = fault.kind == Cut || fault.kind == Isolate || fault.kind == Freeze;
  if (lasts) fault.lasts = Milliseconds(200 + chance.below(chance.one_in(3) ? 12'000 : 3'000));
  return fault;
}

// Whether those who come to the first endpoint can be MAX, who need not wait to hear of the job:
// launchers that are started again, and nodes that never had a place.
bool fill_a_round(const Scenario& scenario, int started_again) {
  return started_again + std::max(0, scenario.nodes - scenario.nodes_max) >= scenario.nodes_max;
}

// A launcher that is started again at the first endpoint in a schedule with cuts: once they have
// healed.
void come_back_when_calm(Scenario& scenario, Chance& chance) {
  bool gone = false;
  int others = 0;
  Milliseconds calm(0);
  for (const Fault& fault : scenario.faults) {
    const bool back = fault.kind == Fault::Kind::Restart;
    const bool ends = fault.kind == Fault::Kind::Crash || fault.kind == Fault::Kind::PowerOff;
    if (fault.node == 0 && back) return;
    if (fault.node == 0 && ends) gone = true;
    if (back) ++others;
    calm = std::max(calm, fault.at + fault.lasts);
  }
  if (!gone || fill_a_round(scenario, others + 1) || chance.one_in(2)) return;
  scenario.faults.push_back({.kind = Fault::Kind::Restart,
                             .at = calm + Milliseconds(10 + chance.below(3'000)),
                             .node = 0});
}

}  // namespace

Scenario random_scenario(std::uint64_t seed, rendezvous::Arbitration arbitration) {
  Chance chance(seed);
  const bool arbiter = arbitration != rendezvous::Arbitration::None;
  Scenario scenario{.nodes = 2 + static_cast<int>(chance.below(6)), .seed = seed};
  scenario.arbitration = arbitration;
  // Few nodes are where an arbiter is asked most.
  if (arbiter && chance.one_in(2)) scenario.nodes = 2 + 2 * static_cast<int>(chance.below(2));
  const auto upto = [&](int most) {
    return static_cast<int>(chance.below(static_cast<std::size_t>(most) + 1));
  };
  scenario.nodes_max = std::max(arbiter ? 2 : 3, scenario.nodes - 1 + upto(2));
  scenario.nodes_min = 1 + upto(std::min(scenario.nodes, scenario.nodes_max) - 1);
  scenario.restarts = chance.one_in(4) ? upto(2) : 100;
  if (chance.one_in(3)) scenario.work = Milliseconds(500 + chance.below(6'000));
  // Who can reach nobody cannot tell a launcher that was started again at the endpoint that the job
  // goes on, and MAX launchers that are started at once do not wait to hear it: then only a minimum
  // of more than half of all nodes keeps those from training (docs/failures.md).
  const bool all_reach_all = chance.one_in(4);
  const bool cannot_train = 2 * scenario.nodes_min > scenario.nodes;
  const std::size_t count = 1 + chance.below(6);
  Milliseconds at(chance.below(6'500));  // A job that lacks nodes begins after 4.8 s.
  for (std::size_t i = 0; i < count; ++i) {
    const Fault fault = random_fault(chance, scenario.nodes, at, all_reach_all);
    scenario.faults.push_back(fault);
    at = fault.at;
    if (arbiter && chance.one_in(6)) {
      scenario.faults.push_back({.kind = Fault::Kind::NoArbiter,
                                 .at = at + Milliseconds(chance.below(1'000)),
                                 .node = fault.node,
                                 .lasts = Milliseconds(200 + chance.below(6'000))});
    }
    const bool gone = fault.kind == Fault::Kind::Crash || fault.kind == Fault::Kind::PowerOff;
    const bool first = fault.node == 0;
    const bool back =
        cannot_train || (first ? all_reach_all && !fill_a_round(scenario, 1) : !all_reach_all);
    if (gone && back && chance.one_in(first ? 2 : 3)) {
      scenario.faults.push_back({.kind = Fault::Kind::Restart,
                                 .at = at + Milliseconds(10 + chance.below(3'000)),
                                 .node = fault.node});
    }
  }
  come_back_when_calm(scenario, chance);
  return scenario;
}

// Any machine may come back: no second job can train without all nodes.
Scenario random_static_scenario(std::uint64_t seed) {
  Scenario scenario = random_scenario(seed);
  scenario.elastic = false;
  scenario.nodes = std::max(3, scenario.nodes);
  scenario.nodes_min = scenario.nodes_max = scenario.nodes;
  Chance chance(~seed);
  std::vector<Fault> faults;
  for (const Fault& fault : scenario.faults) {
    if (fault.kind == Fault::Kind::Restart) continue;
    faults.push_back(fault);
    const bool gone = fault.kind == Fault::Kind::Crash || fault.kind == Fault::Kind::PowerOff;
    if (!gone || chance.one_in(5)) continue;
    faults.push_back({.kind = Fault::Kind::Restart,
                      .at = fault.at + Milliseconds(10 + chance.below(3'000)),
                      .node = fault.node});
  }
  scenario.faults = std::move(faults);
  return scenario;
}

// Most of the losses are of single workers, some of them while others are being replaced.
Scenario random_shrinking_scenario(std::uint64_t seed) {
  Scenario scenario = random_scenario(seed);
  Chance chance(seed ^ 0x5EED);
  scenario.workers_min = 1 + static_cast<int>(chance.below(2));
  const std::size_t count = 1 + chance.below(4);
  Milliseconds at(300 + chance.below(5'000));
  for (std::size_t i = 0; i < count; ++i) {
    const int node = static_cast<int>(chance.below(static_cast<std::size_t>(scenario.nodes)));
    if (chance.one_in(4)) {
      scenario.faults.push_back({.kind = Fault::Kind::HangReplacement,
                                 .at = at,
                                 .node = node,
                                 .lasts = Milliseconds(200 + chance.below(8'000))});
    }
    scenario.faults.push_back({.kind = Fault::Kind::FailWorker, .at = at, .node = node});
    at += Milliseconds(chance.below(chance.one_in(2) ? 60 : 3'000));
  }
  return scenario;
}

Scenario random_checking_scenario(std::uint64_t seed) {
  Scenario scenario = random_scenario(seed);
  Chance chance(seed ^ 0xF17);
  scenario.checks = true;
  if (chance.one_in(4)) scenario.workers_min = 1;
  const std::size_t count = 1 + chance.below(2);
  for (std::size_t i = 0; i < count; ++i) {
    const int node = static_cast<int>(chance.below(static_cast<std::size_t>(scenario.nodes)));
    const Milliseconds at(300 + chance.below(5'500));
    scenario.faults.push_back({.kind = Fault::Kind::Unfit, .at = at, .node = node});
    scenario.faults.push_back({.kind = Fault::Kind::FailWorker,
                               .at = at + Milliseconds(chance.below(300)),
                               .node = chance.one_in(2) ? node : 0});
  }
  return scenario;
}

std::string to_text(const Fault& fault) {
  const Words& words = *std::find_if(vocabulary.begin(), vocabulary.end(),
                                     [&](const Words& known) { return known.kind == fault.kind; });
  std::string text = fmt::format("at {}: {} {}", seconds_of(fault.at), words.name, fault.node);
  if (fault.kind == Fault::Kind::Cut) text += fmt::format(" -> {}", fault.other);
  if (words.lasts) text += fmt::format(" for {}", seconds_of(fault.lasts));
  return text;
}

std::string to_text(const Scenario& scenario) {
  std::string text =
      fmt::format("job of {} nodes, {} to {} in a round, {} restarts, {} of work, seed {}\n",
                  scenario.nodes, scenario.nodes_min, scenario.nodes_max, scenario.restarts,
                  seconds_of(scenario.work), scenario.seed);
  for (const auto& [arbitration, name] : arbiters) {
    if (arbitration == scenario.arbitration) text += fmt::format("arbiter for {}\n", name);
  }
  if (!scenario.elastic) text += "static\n";
  if (scenario.workers_min > 0) {
    text += fmt::format("fewer workers, {} at least\n", scenario.workers_min);
  }
  if (scenario.checks) text += "checks\n";
  for (const Fault& fault : scenario.faults) text += to_text(fault) + "\n";
  return text;
}

Scenario parse_scenario(const std::string& text) {
  std::istringstream in(text);
  Scenario scenario;
  scenario.faults.clear();
  std::string word;
  while (in >> word) {
    if (word == "at") {
      scenario.faults.push_back(read_fault(in));
    } else if (word == "job") {
      in >> word >> scenario.nodes >> word >> scenario.nodes_min >> word >> scenario.nodes_max;
      in >> word >> word >> word >> scenario.restarts >> word;
      scenario.work = read_seconds(in);
      in >> word >> word >> word >> scenario.seed;
      if (!in) throw std::invalid_argument("the job's line ends early");
    } else if (word == "arbiter") {
      in >> word >> word;
      const auto named = std::find_if(arbiters.begin(), arbiters.end(),
                                      [&](const auto& known) { return known.second == word; });
      if (named == arbiters.end()) throw std::invalid_argument("no arbiter: " + word);
      scenario.arbitration = named->first;
    } else if (word == "fewer") {
      in >> word >> scenario.workers_min >> word >> word;
      if (!in) throw std::invalid_argument("how few?");
    } else if (word == "checks") {
      scenario.checks = true;
    } else if (word == "static") {
      scenario.elastic = false;
    } else {
      throw std::invalid_argument("neither a job nor a fault: " + word);
    }
  }
  return scenario;
}

Scenario shrink(Scenario scenario, Planted planted) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (std::size_t i = 0; i < scenario.faults.size(); ++i) {
      Scenario without = scenario;
      without.faults.erase(without.faults.begin() + static_cast<std::ptrdiff_t>(i));
      if (run(without, planted).violation.empty()) continue;
      scenario = std::move(without);
      smaller = true;
      break;
    }
  }
  return scenario;
}

}  // namespace ddprun::simulation
