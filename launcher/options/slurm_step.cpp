// Reads the variables of the step (SLURM_STEP_*), never the job's: a step may have fewer nodes than
// the job, and a batch script's shell has the job's alone (srun(1), OUTPUT ENVIRONMENT VARIABLES).
#include "launcher/options/slurm_step.h"

#include "launcher/options/platform_words.h"
#include "rendezvous/counted.h"

namespace ddprun::launcher {
namespace {

const char* const by_hand =
    "give --nnodes, --node-rank and --master-addr, as scripts/run_node.sh does";

// The step of salloc's shell, with LaunchParameters=use_interactive_step: on one node, whatever the
// allocation has, as a batch script's shell is (Slurm calls its number
// SLURM_INTERACTIVE_STEP).
constexpr long long interactive_step = 0xfffffffa;

bool is_step_of_srun(const Variables& variables) {
  return variables.has("SLURM_STEP_NUM_NODES") &&
         variables.number("SLURM_STEP_ID") != interactive_step;
}

void add_note_of_allocation(const Variables& variables, Platform& platform) {
  if (is_step_of_srun(variables)) return;
  const auto nodes = variables.number("SLURM_JOB_NUM_NODES");
  if (!nodes || *nodes < 2) return;
  platform.notes.push_back(variables.shown("SLURM_JOB_NUM_NODES") +
                           ", but this is no step of srun's, and so a job of one node: srun "
                           "--ntasks-per-node=1 ddprun ... starts it on all of them");
}

}  // namespace

Platform read_slurm_step(const EnvironmentLookup& environment) {
  const Variables variables(environment);
  Platform platform;
  add_note_of_allocation(variables, platform);
  const auto nodes = variables.number("SLURM_STEP_NUM_NODES");
  if (!nodes || !is_step_of_srun(variables)) return platform;
  platform.name = "Slurm's step";
  platform.shown = variables.shown("SLURM_STEP_NUM_NODES");
  platform.other_count = "give srun -N";
  const auto tasks = variables.number("SLURM_STEP_NUM_TASKS");
  if (tasks && *tasks > *nodes) {
    platform.misfit = "srun starts ddprun " + std::to_string(*tasks) + " times on " +
                      rendezvous::counted(*nodes, "node") + " (SLURM_STEP_NUM_TASKS)";
    platform.remedy = "use srun --ntasks-per-node=1, as ddprun starts the workers itself";
  }
  platform.says["nnodes"] = variables.given("SLURM_STEP_NUM_NODES");
  const auto say = [&](const char* option, const char* variable, bool usable,
                       const std::string& value) {
    if (usable) {
      platform.says[option] = {value, variables.shown(variable)};
    } else {
      platform.missing[option] =
          std::string(variable) + " is \"" + variables.text(variable) + "\": " + by_hand;
    }
  };
  say("node-rank", "SLURM_NODEID", variables.number("SLURM_NODEID").has_value(),
      variables.text("SLURM_NODEID"));
  say("master-addr", "SLURM_STEP_NODELIST", variables.has("SLURM_STEP_NODELIST"),
      first_host(variables.text("SLURM_STEP_NODELIST")));
  const auto job = variables.number("SLURM_JOB_ID");
  if (!job) return platform;
  const long long step = variables.number("SLURM_STEP_ID").value_or(0);
  const std::string name = std::to_string(*job) + "." + std::to_string(step);
  platform.says["rdzv-id"] = {"slurm-" + name, "Slurm's step " + name};
  platform.says["master-port"] = {std::to_string(port_of_job(*job, step)), "Slurm's step " + name};
  return platform;
}

std::string first_host(const std::string& host_list) {
  std::string host;
  for (std::size_t at = 0; at < host_list.size() && host_list[at] != ','; ++at) {
    if (host_list[at] != '[') {
      host += host_list[at];
      continue;
    }
    // Of "[03-07,9]" the first number, with its zeros; a name may have several of these.
    const std::size_t close = host_list.find(']', at);
    if (close == std::string::npos) return host_list;
    const std::string numbers = host_list.substr(at + 1, close - at - 1);
    host += numbers.substr(0, numbers.find_first_of("-,"));
    at = close;
  }
  return host.empty() ? host_list : host;
}

}  // namespace ddprun::launcher
