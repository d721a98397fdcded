// Which CPUs workers get, on machines that are written down here.
#include "launcher/machine/cpu_binding.h"

#include <algorithm>
#include <random>
#include <set>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;

namespace {

using Cpus = std::vector<int>;

// Two sockets of two NUMA nodes of four cores of two threads: CPU c and c + 16 are siblings; a
// cache is shared by two cores.
CpuTopology big_machine() {
  CpuTopology machine;
  for (int id = 0; id < 32; ++id) {
    const int core = id % 16;
    machine.cpus.push_back(
        {.id = id, .core = core, .complex = core / 2 * 2, .node = core / 4, .socket = core / 8});
  }
  return machine;
}

// As seen by a process that may not use some CPUs.
CpuTopology restricted(CpuTopology machine, const std::set<int>& allowed) {
  std::erase_if(machine.cpus, [&](const Cpu& cpu) { return allowed.count(cpu.id) == 0; });
  return machine;
}

std::vector<Cpus> cpus(const CpuTopology& machine, NumaBinding mode, int workers) {
  std::vector<Cpus> result;
  for (const WorkerCpus& place : place_workers(machine, mode, workers)) {
    CHECK_FALSE(place.reason.empty());
    result.push_back(place.cpus);
  }
  return result;
}

std::string reason(const CpuTopology& machine, NumaBinding mode, int workers, std::size_t worker) {
  return place_workers(machine, mode, workers).at(worker).reason;
}

}  // namespace

TEST_CASE("lists of CPUs are written and read as the kernel does", "[cpu]") {
  CHECK(format_cpu_list({}) == "");
  CHECK(format_cpu_list({3}) == "3");
  CHECK(format_cpu_list({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8");
  CHECK(parse_cpu_list("0-2,5,7-8\n") == Cpus{0, 1, 2, 5, 7, 8});
  CHECK(parse_cpu_list("") == Cpus{});
  CHECK(parse_cpu_list("\n") == Cpus{});
  CHECK(parse_cpu_list("x,4,-3,6-5,7-,9999999999,2") == Cpus{2, 4});
}

TEST_CASE("node gives a worker the NUMA node of its GPU", "[cpu]") {
  CpuTopology machine = big_machine();
  machine.gpu_nodes = {3, 0};

  const auto places = cpus(machine, NumaBinding::Node, 2);

  CHECK(places[0] == parse_cpu_list("12-15,28-31"));
  CHECK(places[1] == parse_cpu_list("0-3,16-19"));
  CHECK(reason(machine, NumaBinding::Node, 2, 0) == "NUMA node 3, of GPU 0");
}

TEST_CASE("socket gives a worker all nodes of its GPU's socket", "[cpu]") {
  CpuTopology machine = big_machine();
  machine.gpu_nodes = {3, 0};

  const auto places = cpus(machine, NumaBinding::Socket, 2);

  CHECK(places[0] == parse_cpu_list("8-15,24-31"));
  CHECK(places[1] == parse_cpu_list("0-7,16-23"));
}

TEST_CASE("exclusive divides a node's cores among its GPUs, siblings together", "[cpu]") {
  CpuTopology machine = big_machine();
  machine.gpu_nodes = {0, 0, 0, 1};

  const auto places = cpus(machine, NumaBinding::Exclusive, 4);

  CHECK(places[0] == parse_cpu_list("0-1,16-17"));  // Four cores for three: the first gets two.
  CHECK(places[1] == parse_cpu_list("2,18"));
  CHECK(places[2] == parse_cpu_list("3,19"));
  CHECK(places[3] == parse_cpu_list("4-7,20-23"));
}

TEST_CASE("a GPU without a worker keeps its part of the cores", "[cpu]") {
  CpuTopology machine = big_machine();
  machine.gpu_nodes = {0, 0, 0, 0};

  CHECK(cpus(machine, NumaBinding::Exclusive, 2)[1] == parse_cpu_list("1,17"));
}

TEST_CASE("exclusive with too few cores shares the node and says so", "[cpu]") {
  CpuTopology machine = restricted(big_machine(), {0, 16, 5});
  machine.gpu_nodes = {0, 0, 1};

  const auto places = cpus(machine, NumaBinding::Exclusive, 3);

  CHECK(places[0] == Cpus{0, 16});
  CHECK(places[1] == Cpus{0, 16});
  CHECK(places[2] == Cpus{5});
  CHECK(reason(machine, NumaBinding::Exclusive, 3, 0) ==
        "NUMA node 0, of GPU 0, not exclusive: it has 1 core for 2 workers or GPUs");
}

TEST_CASE("core-complex gives each worker one shared cache, the largest first", "[cpu]") {
  CpuTopology machine = restricted(big_machine(), {0, 2, 3, 18, 19, 4, 5});
  machine.gpu_nodes = {0, 0, 0};

  const auto places = cpus(machine, NumaBinding::CoreComplex, 3);

  CHECK(places[0] == parse_cpu_list("2-3,18-19"));
  CHECK(places[1] == Cpus{0});
  CHECK(places[2] == places[0]);  // Round again.
  CHECK(reason(machine, NumaBinding::CoreComplex, 3, 1) ==
        "core complex 2 of 2 on NUMA node 0, of GPU 1");
}

TEST_CASE("without GPUs the workers are spread evenly", "[cpu]") {
  const CpuTopology machine = big_machine();

  const auto two = cpus(machine, NumaBinding::Node, 2);
  CHECK(two[0] == parse_cpu_list("0-3,16-19"));
  CHECK(two[1] == parse_cpu_list("8-11,24-27"));  // The other socket.
  CHECK(cpus(machine, NumaBinding::Socket, 2)[1] == parse_cpu_list("8-15,24-31"));

  const auto eight = cpus(machine, NumaBinding::Exclusive, 8);
  std::set<int> used;
  for (const Cpus& place : eight) {
    CHECK(place.size() == 4);  // Two cores of two threads.
    used.insert(place.begin(), place.end());
  }
  CHECK(used.size() == 32);
}

TEST_CASE("a machine of one node gives each worker all, or its own core", "[cpu]") {
  CpuTopology machine;
  machine.cpus = {{.id = 0, .core = 0, .complex = 0}, {.id = 1, .core = 1, .complex = 0}};

  CHECK(cpus(machine, NumaBinding::Node, 2) == std::vector<Cpus>{{0, 1}, {0, 1}});
  CHECK(cpus(machine, NumaBinding::Exclusive, 2) == std::vector<Cpus>{{0}, {1}});
  CHECK(cpus(machine, NumaBinding::Exclusive, 3) == std::vector<Cpus>{{0, 1}, {0, 1}, {0, 1}});
  CHECK(cpus(machine, NumaBinding::CoreComplex, 1) == std::vector<Cpus>{{0, 1}});
}

TEST_CASE("where the firmware makes one node of two sockets, socket is still meant", "[cpu]") {
  CpuTopology machine = big_machine();
  for (Cpu& cpu : machine.cpus) cpu.node = 0;

  CHECK(cpus(machine, NumaBinding::Socket, 2)[1] == parse_cpu_list("8-15,24-31"));
  machine.gpu_nodes = {0, 0};  // Which socket the GPU is at, nobody can know.
  CHECK(cpus(machine, NumaBinding::Socket, 2)[1] == parse_cpu_list("0-31"));
  CHECK(reason(machine, NumaBinding::Socket, 2, 1) == "which socket is not known, of GPU 1");
}

TEST_CASE("a worker whose GPU is at a forbidden node stays unbound", "[cpu]") {
  CpuTopology machine = restricted(big_machine(), {0, 1});
  machine.gpu_nodes = {0, 2};

  CHECK(cpus(machine, NumaBinding::Node, 2) == std::vector<Cpus>{{0, 1}, {}});
  CHECK(reason(machine, NumaBinding::Node, 2, 1) ==
        "NUMA node 2, of GPU 1, has no CPU that is allowed here");
}

TEST_CASE("GPUs of unknown place are as if there were none, and that is said", "[cpu]") {
  CpuTopology machine = big_machine();
  machine.gpu_nodes = {0, std::nullopt};

  CHECK(cpus(machine, NumaBinding::Node, 2)[1] == parse_cpu_list("8-11,24-27"));
  CHECK(reason(machine, NumaBinding::Node, 2, 1) ==
        "NUMA node 2, share 2 of 2 (the GPUs' nodes are not known)");
  CHECK(cpus(machine, NumaBinding::Node, 1)[0] == parse_cpu_list("0-3,16-19"));  // GPU 0 is known.
}

TEST_CASE("a machine that tells nothing binds nobody", "[cpu]") {
  const auto places = place_workers({}, NumaBinding::Exclusive, 2);

  REQUIRE(places.size() == 2);
  CHECK(places[1].cpus.empty());
  CHECK(places[1].cores == 1);
  CHECK(places[1].reason == "this machine tells nothing about them");
}

TEST_CASE("a worker's share counts physical cores, divided by those who share them", "[cpu]") {
  const auto share = [](const CpuTopology& machine, NumaBinding mode, int workers) {
    return place_workers(machine, mode, workers).at(0).cores;
  };
  CpuTopology machine = big_machine();

  CHECK(share(machine, NumaBinding::None, 1) == 16);
  CHECK(share(machine, NumaBinding::None, 5) == 3);
  CHECK(share(machine, NumaBinding::None, 100) == 1);
  CHECK(share(machine, NumaBinding::Node, 2) == 4);
  CHECK(share(machine, NumaBinding::Node, 8) == 2);
  CHECK(share(machine, NumaBinding::Exclusive, 8) == 2);
  CHECK(share(restricted(machine, {0, 16, 1}), NumaBinding::None, 1) == 2);
}

TEST_CASE("a worker's share is no more than its part of the control group's quota", "[cpu]") {
  CpuTopology machine = big_machine();
  const auto first = [&](double quota, NumaBinding mode, int workers) {
    machine.quota = quota;
    return place_workers(machine, mode, workers).at(0);
  };
  CHECK(first(4, NumaBinding::None, 1).cores == 4);
  CHECK(first(4, NumaBinding::None, 1).of_quota);
  CHECK(first(6.5, NumaBinding::Node, 2).cores == 3);
  CHECK(first(4, NumaBinding::None, 8).cores == 1);
  CHECK(first(0.5, NumaBinding::None, 1).cores == 1);
  // A part of all of them is no limit, and none is none.
  CHECK(first(16, NumaBinding::None, 1).cores == 16);
  CHECK_FALSE(first(16, NumaBinding::None, 1).of_quota);
  CHECK(first(0, NumaBinding::None, 1).cores == 16);
}

TEST_CASE("on any machine only allowed CPUs are given out, and exclusive ones once", "[cpu]") {
  std::mt19937 random(20261121);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 3'000; ++round) {
    CpuTopology machine;
    std::set<int> allowed;
    const int threads = 1 + below(2), per_node = 1 + below(6), per_complex = 1 + below(4);
    for (int id = 0, count = 1 + below(40); id < count; ++id) {
      const int core = id / threads;
      if (below(4) == 0) continue;
      allowed.insert(id);
      machine.cpus.push_back({.id = id,
                              .core = core * threads,
                              .complex = core / per_complex * per_complex * threads,
                              .node = core / per_node,
                              .socket = core / per_node / 2});
    }
    for (int gpus = below(5); gpus > 0; --gpus) {
      machine.gpu_nodes.push_back(below(8) == 0 ? std::nullopt : std::optional(below(5)));
    }
    const int workers = 1 + below(9);
    for (const NumaBinding mode : {NumaBinding::None, NumaBinding::Node, NumaBinding::Socket,
                                   NumaBinding::Exclusive, NumaBinding::CoreComplex}) {
      const auto places = place_workers(machine, mode, workers);
      REQUIRE(static_cast<int>(places.size()) == workers);
      std::multiset<int> used;
      bool shared = false;
      for (const WorkerCpus& place : places) {
        REQUIRE(std::is_sorted(place.cpus.begin(), place.cpus.end()));
        for (const int cpu : place.cpus) REQUIRE(allowed.count(cpu) == 1);
        REQUIRE(place.cores >= 1);
        used.insert(place.cpus.begin(), place.cpus.end());
        shared = shared || place.reason.find("not exclusive") != std::string::npos;
      }
      if (mode != NumaBinding::Exclusive || shared) continue;
      for (const int cpu : allowed) REQUIRE(used.count(cpu) <= 1);
      const bool one_node =
          !machine.cpus.empty() && machine.cpus.front().node == machine.cpus.back().node;
      if (machine.gpu_nodes.empty() && one_node) REQUIRE(used.size() == allowed.size());
    }
  }
}
