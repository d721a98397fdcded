// Reads the variables of the step (SLURM_STEP_*), never the job's: a step may have fewer nodes than
// the job, and a batch script's shell has the job's alone (srun(1), OUTPUT ENVIRONMENT VARIABLES).
#include "launcher/options/slurm_step.h"

#include <charconv>
#include <initializer_list>
#include <optional>

namespace ddprun::launcher {
namespace {

// Below 32768, where Linux begins to hand out ports by itself, so that no passing connection of a
// program has it already.
constexpr long long kPortsBegin = 20'000, kPortsCount = 12'000;
// Steps of one job at a time that have ports of their own; job numbers follow each other, so
// neighbours on a shared node are this far apart.
constexpr long long kStepsApart = 8;

std::optional<long long> number_in(const EnvironmentLookup& environment, const char* name) {
  const std::string text = environment(name).value_or("");
  long long number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

class Step {
 public:
  Step(SplitArguments& split, const EnvironmentLookup& environment)
      : split_(split), environment_(environment) {}

  void add();

 private:
  bool given(const char* option) const { return split_.find(option) != nullptr; }
  bool asks_to_be_alone() const {
    const GivenOption* alone = split_.find("standalone");
    return alone != nullptr && alone->value != "0";
  }
  long long require(const char* name) const;
  void check_tasks(long long nodes) const;
  void check_nodes(long long nodes) const;
  void set(const char* option, const std::string& value, const std::string& source) {
    if (!given(option)) split_.options[option] = {value, source};
  }
  // Of what the step's variable `name` says.
  void set_from(const char* option, const char* name) {
    const std::string value = environment_(name).value_or("");
    set(option, value, std::string(name) + "=" + value);
  }

  SplitArguments& split_;
  const EnvironmentLookup& environment_;
};

long long Step::require(const char* name) const {
  if (const auto number = number_in(environment_, name)) return *number;
  throw usage_error(
      "Slurm's step has several nodes, but " + std::string(name) + " is \"" +
      environment_(name).value_or("") +
      "\": give --nnodes, --node-rank and --master-addr, as scripts/run_node.sh does");
}

void Step::check_tasks(long long nodes) const {
  const auto tasks = number_in(environment_, "SLURM_STEP_NUM_TASKS");
  if (!tasks || *tasks <= nodes) return;
  throw usage_error("srun starts ddprun " + std::to_string(*tasks) + " times on " +
                    std::to_string(nodes) + (nodes == 1 ? " node" : " nodes") +
                    " (SLURM_STEP_NUM_TASKS), and each would be a job of its own: use srun "
                    "--ntasks-per-node=1, as ddprun starts the workers itself; for separate jobs "
                    "give --standalone");
}

// MIN:MAX may be other numbers than the step's: nodes come and go there.
void Step::check_nodes(long long nodes) const {
  const GivenOption* asked = split_.find("nnodes");
  if (asked == nullptr || asked->value.find(':') != std::string::npos) return;
  if (asked->value == std::to_string(nodes)) return;
  throw usage_error(asked->source + ", but Slurm's step has " + std::to_string(nodes) +
                    " nodes (SLURM_STEP_NUM_NODES): leave --nnodes out, or give srun -N");
}

void Step::add() {
  const auto nodes = number_in(environment_, "SLURM_STEP_NUM_NODES");
  if (!nodes || asks_to_be_alone()) return;
  // Whoever says all of it knows better: run_node.sh, or a step that holds several jobs.
  const bool told =
      given("nnodes") && given("node-rank") && (given("master-addr") || given("rdzv-endpoint"));
  if (told) return;
  check_tasks(*nodes);
  if (*nodes < 2) return;
  check_nodes(*nodes);
  const GivenOption* backend = split_.find("rdzv-backend");
  const bool elastic = backend != nullptr && backend->value != "static";
  set_from("nnodes", "SLURM_STEP_NUM_NODES");
  if (!elastic) {
    require("SLURM_NODEID");
    set_from("node-rank", "SLURM_NODEID");
  }
  const bool has_endpoint = given("master-addr") || given("rdzv-endpoint");
  const long long job = require("SLURM_JOB_ID");
  const long long step = number_in(environment_, "SLURM_STEP_ID").value_or(0);
  const std::string name = std::to_string(job) + "." + std::to_string(step);
  set("rdzv-id", "slurm-" + name, "Slurm's step " + name);
  if (has_endpoint) return;
  const std::string list = environment_("SLURM_STEP_NODELIST").value_or("");
  if (list.empty()) require("SLURM_STEP_NODELIST");
  set("master-addr", first_host(list), "SLURM_STEP_NODELIST=" + list);
  set("master-port", std::to_string(slurm_port(job, step)), "Slurm's step " + name);
}

}  // namespace

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

int slurm_port(long long job, long long step) {
  const long long place = (job % kPortsCount) * kStepsApart + step % kStepsApart;
  return static_cast<int>(kPortsBegin + place % kPortsCount);
}

void add_slurm_step(SplitArguments& split, const EnvironmentLookup& environment) {
  Step(split, environment).add();
}

}  // namespace ddprun::launcher
