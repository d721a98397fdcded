// torchrun's four modes over a topology that is a value: every machine can be tested on any.
#include "launcher/machine/cpu_binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace ddprun::launcher {
namespace {

constexpr int cpu_number_max = 65'536;  // A list that names higher ones is not believed.

using Members = std::map<int, std::vector<int>>;  // Group -> its CPUs, ascending.

// The CPUs of `cpus` by what `group` says of each.
template <typename Group>
Members group_by(const std::vector<const Cpu*>& cpus, Group group) {
  Members members;
  for (const Cpu* cpu : cpus) members[group(*cpu)].push_back(cpu->id);
  return members;
}

int count_cores(const CpuTopology& topology, const std::vector<int>& cpus) {
  std::set<int> cores;
  for (const Cpu& cpu : topology.cpus) {
    if (std::binary_search(cpus.begin(), cpus.end(), cpu.id)) cores.insert(cpu.core);
  }
  return static_cast<int>(cores.size());
}

// Where a worker belongs: next to its GPU, or where its even share of the cores begins.
struct Home {
  int node = 0;
  std::optional<int> socket;    // Only without a GPU; otherwise found from the node.
  std::size_t index_there = 0;  // Among those that share the node.
  std::size_t sharers = 1;
  std::string why;
};

class Placement {
 public:
  Placement(const CpuTopology& topology, NumaBinding mode, int workers)
      : topology_(topology), mode_(mode), workers_(static_cast<std::size_t>(workers)) {}

  std::vector<WorkerCpus> place() const {
    std::vector<WorkerCpus> places(workers_);
    if (topology_.cpus.empty()) {
      for (WorkerCpus& place : places) place.reason = "this machine tells nothing about them";
      return places;
    }
    if (mode_ != NumaBinding::None) {
      const std::vector<Home> homes = by_gpus() ? homes_by_gpu() : homes_by_core();
      for (std::size_t i = 0; i < workers_; ++i) places[i] = bind(homes[i]);
    }
    count_shares(places);
    return places;
  }

 private:
  std::vector<const Cpu*> all() const {
    std::vector<const Cpu*> cpus;
    for (const Cpu& cpu : topology_.cpus) cpus.push_back(&cpu);
    return cpus;
  }
  std::vector<const Cpu*> of_node(int node) const {
    std::vector<const Cpu*> cpus;
    for (const Cpu& cpu : topology_.cpus) {
      if (cpu.node == node) cpus.push_back(&cpu);
    }
    return cpus;
  }

  // All or none: a mixture of both rules would put workers of different kinds on the same cores.
  bool by_gpus() const {
    const auto& nodes = topology_.gpu_nodes;
    const std::size_t used = std::min(nodes.size(), workers_);
    return used > 0 && std::all_of(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(used),
                                   [](const auto& node) { return node.has_value(); });
  }

  // As torchrun, a GPU without a worker keeps its part: another job may use it. Workers beyond the
  // number of GPUs go round, as programs do that take device local_rank % count.
  std::vector<Home> homes_by_gpu() const {
    const auto& nodes = topology_.gpu_nodes;
    const std::size_t slots = std::max(nodes.size(), workers_);
    std::map<int, std::size_t> sharers;
    std::vector<Home> homes;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const std::size_t gpu = slot % nodes.size();
      Home home;
      home.why = fmt::format("of GPU {}", gpu);
      if (nodes[gpu]) {
        home.node = *nodes[gpu];
        home.index_there = sharers[*nodes[gpu]]++;
      }
      homes.push_back(std::move(home));
    }
    homes.resize(workers_);
    for (Home& home : homes) home.sharers = sharers[home.node];
    return homes;
  }

  // Worker i of n begins at core i * C / n of all C, in the order of sockets and nodes. So a node
  // has at least as many cores as workers whenever the machine has.
  std::vector<Home> homes_by_core() const {
    std::vector<const Cpu*> cores;
    std::set<int> seen;
    for (const Cpu& cpu : topology_.cpus) {
      if (seen.insert(cpu.core).second) cores.push_back(&cpu);
    }
    std::stable_sort(cores.begin(), cores.end(), [](const Cpu* one, const Cpu* other) {
      return std::pair(one->socket, one->node) < std::pair(other->socket, other->node);
    });
    std::map<int, std::size_t> sharers;
    std::vector<Home> homes;
    for (std::size_t i = 0; i < workers_; ++i) {
      const Cpu* first = cores[i * cores.size() / workers_];
      homes.push_back({.node = first->node,
                       .socket = first->socket,
                       .index_there = sharers[first->node]++,
                       .why = fmt::format(
                           "share {} of {}{}", i + 1, workers_,
                           topology_.gpu_nodes.empty() ? "" : " (the GPUs' nodes are not known)")});
    }
    for (Home& home : homes) home.sharers = sharers[home.node];
    return homes;
  }

  WorkerCpus bind(const Home& home) const {
    const auto cpus = of_node(home.node);
    if (cpus.empty()) {
      return {.reason = fmt::format("NUMA node {}, {}, has no CPU that is allowed here", home.node,
                                    home.why)};
    }
    switch (mode_) {
      case NumaBinding::Socket:
        return socket(home, cpus);
      case NumaBinding::Exclusive:
        return exclusive(home, cpus);
      case NumaBinding::CoreComplex:
        return core_complex(home, cpus);
      case NumaBinding::Node:
      case NumaBinding::None:
        break;
    }
    return {ids(cpus), fmt::format("NUMA node {}, {}", home.node, home.why)};
  }

  static std::vector<int> ids(const std::vector<const Cpu*>& cpus) {
    std::vector<int> result;
    for (const Cpu* cpu : cpus) result.push_back(cpu->id);
    return result;
  }

  // A node may span sockets, where the firmware makes one node of all: then all of them are near.
  WorkerCpus socket(const Home& home, const std::vector<const Cpu*>& node_cpus) const {
    std::set<int> sockets;
    if (home.socket) {
      sockets.insert(*home.socket);
    } else {
      for (const Cpu* cpu : node_cpus) sockets.insert(cpu->socket);
    }
    WorkerCpus place;
    for (const Cpu& cpu : topology_.cpus) {
      if (sockets.count(cpu.socket) != 0) place.cpus.push_back(cpu.id);
    }
    const bool known = sockets.size() == 1 && *sockets.begin() >= 0;
    place.reason = known ? fmt::format("socket {}, {}", *sockets.begin(), home.why)
                         : fmt::format("which socket is not known, {}", home.why);
    return place;
  }

  // SMT siblings stay together; the first ones get what does not divide evenly.
  WorkerCpus exclusive(const Home& home, const std::vector<const Cpu*>& node_cpus) const {
    const Members cores = group_by(node_cpus, [](const Cpu& cpu) { return cpu.core; });
    const std::size_t each = cores.size() / home.sharers, extra = cores.size() % home.sharers;
    if (each == 0) {
      return {ids(node_cpus), fmt::format("NUMA node {}, {}, not exclusive: it has {} for {} "
                                          "workers or GPUs",
                                          home.node, home.why,
                                          cores.size() == 1 ? std::string("1 core")
                                                            : fmt::format("{} cores", cores.size()),
                                          home.sharers)};
    }
    const std::size_t begin = home.index_there * each + std::min(home.index_there, extra);
    const std::size_t count = each + (home.index_there < extra ? 1 : 0);
    WorkerCpus place;
    auto core = std::next(cores.begin(), static_cast<std::ptrdiff_t>(begin));
    for (std::size_t taken = 0; taken < count; ++taken, ++core) {
      place.cpus.insert(place.cpus.end(), core->second.begin(), core->second.end());
    }
    std::sort(place.cpus.begin(), place.cpus.end());
    place.reason = fmt::format("its own part of NUMA node {}, {}", home.node, home.why);
    return place;
  }

  // The complex with the most CPUs first, and round again when there are more workers.
  WorkerCpus core_complex(const Home& home, const std::vector<const Cpu*>& node_cpus) const {
    std::vector<std::vector<int>> complexes;
    for (auto& [first, cpus] : group_by(node_cpus, [](const Cpu& cpu) { return cpu.complex; })) {
      complexes.push_back(cpus);
    }
    std::stable_sort(complexes.begin(), complexes.end(),
                     [](const auto& one, const auto& other) { return one.size() > other.size(); });
    const std::size_t chosen = home.index_there % complexes.size();
    return {complexes[chosen], fmt::format("core complex {} of {} on NUMA node {}, {}", chosen + 1,
                                           complexes.size(), home.node, home.why)};
  }

  // Cores of a worker divided by those that may run on them too; an unbound one runs anywhere.
  void count_shares(std::vector<WorkerCpus>& places) const {
    const std::vector<int> everything = ids(all());
    std::map<int, int> users;  // By CPU.
    const auto cpus_of = [&](const WorkerCpus& place) -> const std::vector<int>& {
      return place.cpus.empty() ? everything : place.cpus;
    };
    for (const WorkerCpus& place : places) {
      for (const int cpu : cpus_of(place)) users[cpu] += 1;
    }
    for (WorkerCpus& place : places) {
      int most = 1;
      for (const int cpu : cpus_of(place)) most = std::max(most, users[cpu]);
      place.cores = std::max(1, count_cores(topology_, cpus_of(place)) / most);
      const double own = topology_.quota / static_cast<double>(places.size());
      if (topology_.quota <= 0 || own >= place.cores) continue;
      place.of_quota = true;
      place.cores = std::max(1, static_cast<int>(own));
    }
  }

  const CpuTopology& topology_;
  NumaBinding mode_;
  std::size_t workers_;
};

}  // namespace

std::vector<WorkerCpus> place_workers(const CpuTopology& topology, NumaBinding mode, int workers) {
  return Placement(topology, mode, workers).place();
}

std::string format_cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < cpus.size(); begin = end) {
    for (end = begin + 1; end < cpus.size() && cpus[end] == cpus[end - 1] + 1; ++end) {
    }
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[begin]);
    if (end - begin > 1) text.append("-").append(std::to_string(cpus[end - 1]));
  }
  return text;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::set<int> cpus;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    int first = 0;
    auto read = std::from_chars(at, end, first);
    int last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
    }
    if (read.ec == std::errc() && first >= 0 && last < cpu_number_max) {
      for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
    }
    at = std::find(read.ptr, end, ',');
    if (at != end) ++at;
  }
  return {cpus.begin(), cpus.end()};
}

}  // namespace ddprun::launcher
