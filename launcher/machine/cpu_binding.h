// Which CPUs each local worker may run on (--numa-binding), and how many physical cores are its
// share (--omp-threads auto).
//
// A core: the machine comes in as a value (cpu_topology.h reads it). The four modes have the
// meaning that torchrun gives them; where torchrun ends the job, a worker stays unbound here and
// the reason says why.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

enum class NumaBinding {
  None,
  Node,         // All CPUs of the NUMA node of the worker's GPU.
  Socket,       // All CPUs of that node's socket.
  Exclusive,    // A part of that node's physical cores that no other worker has.
  CoreComplex,  // The CPUs that share one last-level cache there.
};

// One logical CPU. Numbers only tell groups apart; -1 where the machine does not say.
struct Cpu {
  int id = 0;
  int core = 0;     // The lowest CPU of its physical core.
  int complex = 0;  // The lowest CPU that shares its last-level cache.
  int node = 0;     // NUMA node.
  int socket = 0;
};

struct CpuTopology {
  std::vector<Cpu> cpus;  // Online and allowed for this process, by id.
  // NUMA node of every visible GPU, by its CUDA index; nothing where the machine does not say.
  std::vector<std::optional<int>> gpu_nodes;
  // How much of them the control group may use, in whole CPUs; 0: all. A container of Kubernetes
  // (resources.limits.cpu) or Docker (--cpus) sees every CPU of its machine.
  double quota = 0;
};

// A worker's place.
struct WorkerCpus {
  std::vector<int> cpus;  // Ascending; empty = as inherited.
  std::string reason;     // One line without a full stop.
  int cores = 1;          // Physical cores that are the worker's share, at least 1, and ...
  bool of_quota = false;  // ... fewer than there are, since the control group may use no more.
};

// One per local rank, for `workers` of them. Only CPUs of `topology` are handed out. Worker i is
// taken to use GPU i; without known GPUs the workers are spread evenly over the physical cores, and
// a worker's node is that of its first core.
std::vector<WorkerCpus> place_workers(const CpuTopology& topology, NumaBinding mode, int workers);

// "0-3,8" and {0, 1, 2, 3, 8}, as in sysfs. What cannot be read is left out.
std::string format_cpu_list(const std::vector<int>& cpus);
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace ddprun::launcher
