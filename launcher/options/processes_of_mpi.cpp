// Names and meanings are from the launchers' own pages and from dumps of environments. Where mpirun
// or Hydra start their daemons by srun, every process has the variables of that step, too, which
// counts the daemons.
#include "launcher/options/processes_of_mpi.h"

#include <array>
#include <cstdint>
#include <sstream>

#include "launcher/options/platform_words.h"

namespace ddprun::launcher {
namespace {

struct Starter {
  const char* name;
  const char* command;  // What the user has typed.
  const char* shown;    // By which it is told from others.
  const char* rank;
  const char* count;  // "" = only its interface says.
  const char* local;  // How many of them this host has,
  const char* nodes;  // or on how many hosts they all are.
  const char* job;    // Of which a port is made.
  const char* once;   // How to start one on each host.
};

constexpr std::array nearer_than_slurm = {
    Starter{"Open MPI", "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "", "",
            "use mpirun --map-by ppr:1:node"},
    Starter{"MVAPICH2", "mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "", "", "use mpiexec -ppn 1"},
    // Not PMI_RANK, which Slurm's own PMI sets as well.
    Starter{"MPICH or Intel MPI", "mpiexec", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_SIZE",
            "MPI_LOCALNRANKS", "", "", "use mpiexec -ppn 1"},
    Starter{"jsrun", "jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
            "JSM_NAMESPACE_LOCAL_SIZE", "", "LSB_JOBID", "use jsrun -r 1 -a 1"},
    Starter{"Flux", "flux run", "FLUX_TASK_RANK", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "",
            "FLUX_JOB_NNODES", "FLUX_JOB_ID", "use flux run --tasks-per-node=1"},
};
constexpr std::array farther_than_slurm = {
    Starter{"PMI", "mpiexec", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_SIZE", "", "",
            "start one on each host"},
    Starter{"PMIx", "its launcher", "PMIX_RANK", "PMIX_RANK", "", "", "", "",
            "start one on each host"},
};

// Job names are numbers, "4711.server", or words of Flux's.
long long number_of_job(const std::string& job) {
  if (const auto number = platform_number(job.substr(0, job.find('.')))) return *number;
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const unsigned char letter : job) hash = (hash ^ letter) * 16777619U;
  return hash;
}

void count_processes(const Starter& starter, const Variables& variables, Platform& platform) {
  if (starter.count[0] == '\0') {
    platform.missing["nnodes"] = platform.shown + " does not say of how many: give --nnodes";
    return;
  }
  platform.says["nnodes"] = variables.given(starter.count);
  const auto count = variables.number(starter.count);
  if (!count || *count < 2) return;
  const auto local = variables.number(starter.local), nodes = variables.number(starter.nodes);
  const bool one_each = local ? *local == 1 : nodes && *nodes == *count;
  if (one_each) return;
  platform.misfit = std::string(starter.command) + " starts ddprun " + std::to_string(*count) +
                    " times (" + variables.shown(starter.count);
  if (local) platform.misfit += ", " + variables.shown(starter.local) + " of them on this host";
  if (nodes) platform.misfit += ", " + variables.shown(starter.nodes);
  platform.misfit += ")";
  platform.remedy = std::string(starter.once) + ", as ddprun starts the workers itself";
}

// The first line of LSF's rank file is the host from which jsrun was called.
std::string head_of_rank_file(const Surroundings& around, const Variables& variables) {
  std::istringstream lines(around.file(variables.text("LSB_DJOB_RANKFILE")));
  std::string host;
  for (int line = 0; line < 2; ++line) {
    if (!(lines >> host)) return "";
  }
  return host;
}

Platform read_starter(const Starter& starter, const Surroundings& around) {
  const Variables variables(around.environment);
  Platform platform;
  if (!variables.has(starter.shown) || !variables.has(starter.rank)) return platform;
  platform.name = starter.name;
  platform.shown = variables.shown(starter.shown);
  platform.other_count = "start as many";
  count_processes(starter, variables, platform);
  platform.says["node-rank"] = variables.given(starter.rank);
  if (variables.has(starter.job)) {
    const long long job = number_of_job(variables.text(starter.job));
    platform.says["master-port"] = {std::to_string(port_of_job(job, 0)),
                                    variables.shown(starter.job)};
  }
  const bool of_lsf = variables.has("LSB_DJOB_RANKFILE");
  const std::string head = of_lsf ? head_of_rank_file(around, variables) : "";
  if (!head.empty()) {
    platform.says["master-addr"] = {head, variables.shown("LSB_DJOB_RANKFILE")};
  } else {
    platform.missing["master-addr"] = platform.name +
                                      " does not say where its process 0 is: give " +
                                      "--master-addr, that host's name";
  }
  return platform;
}

template <typename Starters>
Platform first_of(const Starters& starters, const Surroundings& around) {
  for (const Starter& starter : starters) {
    Platform platform = read_starter(starter, around);
    if (platform.is_here()) return platform;
  }
  return {};
}

}  // namespace

Platform read_mpi(const Surroundings& around) { return first_of(nearer_than_slurm, around); }

Platform read_process_manager(const Surroundings& around) {
  return first_of(farther_than_slurm, around);
}

}  // namespace ddprun::launcher
