// print_placement ROOT CPUS WORKERS: for each mode of --numa-binding a line with the CPUs of every
// worker on the machine whose files lie under ROOT. Compared with torch by cpu_oracle.py.
#include <cstdio>
#include <cstdlib>

#include "launcher/machine/cpu_topology.h"

int main(int argc, char** argv) {
  using namespace ddprun::launcher;
  if (argc != 4) return 2;
  const CpuTopology machine = read_cpu_topology(argv[1], parse_cpu_list(argv[2]), std::nullopt);
  for (const NumaBinding mode :
       {NumaBinding::Node, NumaBinding::Socket, NumaBinding::Exclusive, NumaBinding::CoreComplex}) {
    for (const WorkerCpus& place : place_workers(machine, mode, std::atoi(argv[3]))) {
      std::printf("%s ", place.cpus.empty() ? "-" : format_cpu_list(place.cpus).c_str());
    }
    std::printf("\n");
  }
}
