// Reads the variables of the step (SLURM_STEP_*), never the job's: a step may have fewer nodes than
// the job, and a batch script's shell has the job's alone (srun(1), OUTPUT ENVIRONMENT VARIABLES).
// Only which of the step's nodes is node 0 is told by a heterogeneous job's components.
#include "launcher/options/slurm_step.h"

#include <algorithm>
#include <vector>

#include "launcher/hosts/host_list.h"
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

// The variables with the nodes of each component of a heterogeneous job (srun A : B), in the order
// in which their nodes are counted. Where srun itself has made the allocation, 22.05 has the old
// name alone.
std::vector<std::string> components(const Variables& variables) {
  std::vector<std::string> found;
  for (;;) {
    const std::string number = std::to_string(found.size());
    std::string name = "SLURM_JOB_NODELIST_HET_GROUP_" + number;
    if (!variables.has(name)) name = "SLURM_JOB_NODELIST_PACK_GROUP_" + number;
    if (!variables.has(name)) return found;
    found.push_back(std::move(name));
  }
}

bool has_host(const std::string& host_list, const std::string& host) {
  try {
    const auto hosts = parse_host_list(host_list).hosts;
    return std::any_of(hosts.begin(), hosts.end(),
                       [&](const Host& one) { return one.name == host; });
  } catch (const HostListError&) {
    return false;
  }
}

// The variable whose first host is node 0. The list of a step with several components is sorted by
// name, but node 0 is the first of its first component. A step may have some of them alone, by
// --het-group.
std::string variable_of_head(const Variables& variables) {
  const std::string of_step = "SLURM_STEP_NODELIST";
  const std::string step = variables.text(of_step);
  const std::vector<std::string> lists = components(variables);
  const auto is_step = [&](const std::string& name) { return variables.text(name) == step; };
  if (step.empty() || std::any_of(lists.begin(), lists.end(), is_step)) return of_step;
  const auto first = std::find_if(lists.begin(), lists.end(), [&](const std::string& name) {
    return has_host(step, first_host(variables.text(name)));
  });
  return first == lists.end() ? of_step : *first;
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
  const auto say = [&](const char* option, const std::string& variable, bool usable,
                       const std::string& value) {
    if (usable) {
      platform.says[option] = {value, variables.shown(variable)};
    } else {
      platform.missing[option] = variable + " is \"" + variables.text(variable) + "\": " + by_hand;
    }
  };
  say("node-rank", "SLURM_NODEID", variables.number("SLURM_NODEID").has_value(),
      variables.text("SLURM_NODEID"));
  const std::string head = variable_of_head(variables);
  say("master-addr", head, variables.has(head), first_host(variables.text(head)));
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
