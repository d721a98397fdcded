// The order of platforms, and what they may decide. A job that one of them has started inside of
// another is a job of the inner one, so those that start each process come before those that start
// each machine.
#include "launcher/options/platform.h"

#include <iterator>

#include "launcher/options/nodes_of_cloud.h"
#include "launcher/options/platform_words.h"
#include "launcher/options/processes_of_mpi.h"
#include "launcher/options/slurm_step.h"

namespace ddprun::launcher {
namespace {

// Below 32768, where Linux begins to hand out ports by itself, so that no passing connection of a
// program has it already.
constexpr long long ports_begin = 20'000, ports_count = 12'000;
// Steps of one job at a time that have ports of their own; job numbers follow each other, so
// neighbours on a shared node are this far apart.
constexpr long long steps_apart = 8;

// torchrun's names for workers are other launchers' names for nodes (PyTorchJob, Volcano, Alibaba's
// PAI), and are left over in many a shell: nobody can tell which.
void reject_names_of_workers(const Variables& variables, Platform& platform) {
  const bool of_a_launcher = variables.has("TORCHELASTIC_RUN_ID");
  const auto size = variables.number("WORLD_SIZE");
  if (platform.is_here() || of_a_launcher || !size || *size < 2 || !variables.has("RANK")) return;
  const std::string found = variables.shown("RANK") + " and " + variables.shown("WORLD_SIZE");
  platform.rejected.push_back(found + ": nobody can tell whether they count workers or nodes");
  if (!variables.has("MASTER_ADDR")) return;
  platform.notes.push_back(found +
                           " are not read, as they may count workers or nodes: if nodes, give "
                           "--nnodes $WORLD_SIZE --node-rank $RANK --master-addr $MASTER_ADDR");
}

bool is_from_variable(const SplitArguments& split, const char* name) {
  const GivenOption* option = split.find(name);
  return option != nullptr && is_variable_of_option(*option);
}

// With --nnodes 1 typed in a pod that is not the first of its job: a job of its own, which has no
// other node's number or address.
void leave_place_among_pods(SplitArguments& split) {
  const GivenOption* nodes = split.find("nnodes");
  if (nodes == nullptr || is_variable_of_option(*nodes) || nodes->value != "1") return;
  if (!is_from_variable(split, "node-rank") || split.find("node-rank")->value == "0") return;
  for (const char* name : {"node-rank", "master-addr", "rdzv-endpoint"}) {
    if (is_from_variable(split, name)) split.options.erase(name);
  }
}

// The command line wins over a pod's variables, which are of its job of several nodes. Two
// variables that contradict each other are left to whoever reads them.
std::vector<std::string> leave_job_of_pods(SplitArguments& split) {
  std::vector<std::string> notes;
  if (is_variable_of_option(*split.find("standalone"))) return notes;
  if (is_from_variable(split, "nnodes")) {
    const GivenOption nodes = *split.find("nnodes");
    split.options.erase("nnodes");
    if (nodes.value != "1") notes.push_back(nodes.source + " has no effect with --standalone");
  }
  if (is_from_variable(split, "node-rank")) split.options.erase("node-rank");
  return notes;
}

class Addition {
 public:
  Addition(SplitArguments& split, const Platform& platform) : split_(split), platform_(platform) {}

  void add();

 private:
  bool given(const char* option) const { return split_.find(option) != nullptr; }
  bool has_endpoint() const { return given("master-addr") || given("rdzv-endpoint"); }
  bool elastic() const {
    const GivenOption* backend = split_.find("rdzv-backend");
    return backend != nullptr && backend->value != "static";
  }
  // What the platform says, or null.
  const GivenOption* said(const char* option) const {
    const auto found = platform_.says.find(option);
    return found == platform_.says.end() ? nullptr : &found->second;
  }
  bool counts_by_option() const;
  void check_fit() const;
  void check_count() const;
  void take(const char* option);
  void take_if_said(const char* option) {
    if (!given(option) && said(option) != nullptr) split_.options[option] = *said(option);
  }

  SplitArguments& split_;
  const Platform& platform_;
};

void Addition::check_fit() const {
  if (platform_.misfit.empty()) return;
  if (given("nnodes") && (platform_.nodes_settle_misfit || (elastic() && has_endpoint()))) return;
  throw usage_error(platform_.misfit + ", and each would be a job of its own: " + platform_.remedy +
                    "; for separate jobs give --standalone");
}

// PET_NNODES is what an option is if nobody gives it: the command line wins over it, as in
// torchrun.
bool Addition::counts_by_option() const {
  const GivenOption* nodes = said("nnodes");
  return nodes != nullptr && is_variable_of_option(*nodes);
}

// MIN:MAX may be other numbers than the platform's: nodes come and go there.
void Addition::check_count() const {
  const GivenOption* asked = split_.find("nnodes");
  const GivenOption* nodes = said("nnodes");
  if (asked == nullptr || nodes == nullptr || asked->value == nodes->value) return;
  if (counts_by_option() || asked->value.find(':') != std::string::npos) return;
  const std::string variable = nodes->source.substr(0, nodes->source.find('='));
  // Where there is a misfit, leaving it out is refused as well.
  const std::string remedy = platform_.misfit.empty()
                                 ? "leave --nnodes out, or " + platform_.other_count
                                 : platform_.remedy;
  throw usage_error(asked->source + ", but " + platform_.name + " has " + nodes->value +
                    " nodes (" + variable + "): " + remedy +
                    "; for a job of this node alone give --standalone");
}

void Addition::take(const char* option) {
  if (given(option)) return;
  if (said(option) == nullptr) {
    const auto why = platform_.missing.find(option);
    throw usage_error(why == platform_.missing.end()
                          ? platform_.name + " (" + platform_.shown + ") does not say --" + option +
                                ": give it"
                          : why->second + "; for separate jobs give --standalone");
  }
  take_if_said(option);
}

void Addition::add() {
  check_fit();
  const GivenOption* nodes = said("nnodes");
  const auto count = nodes != nullptr ? platform_number(nodes->value) : std::nullopt;
  if (platform_.misfit.empty() && count && *count < 2) return;
  // Each of several that are told apart and not counted (pods of a sweep) is a job of its own.
  const bool uncounted = nodes == nullptr || counts_by_option();
  if (uncounted && given("nnodes") && split_.find("nnodes")->value == "1") return;
  check_count();
  take("nnodes");
  if (!elastic()) take("node-rank");
  take_if_said("rdzv-id");
  if (given("rdzv-endpoint")) return;  // That has a port of its own, an address has none.
  take("master-addr");
  take_if_said("master-port");
}

}  // namespace

Platform read_platform(const Surroundings& around) {
  const Platform found[] = {read_mpi(around), read_slurm_step(around.environment),
                            read_process_manager(around), read_cloud(around),
                            read_batch_system(around)};
  Platform result;
  for (const Platform& platform : found) {
    if (platform.is_here() && !result.is_here()) {
      auto rejected = std::move(result.rejected);
      result = platform;
      result.rejected.insert(result.rejected.begin(), rejected.begin(), rejected.end());
      continue;
    }
    result.rejected.insert(result.rejected.end(), platform.rejected.begin(),
                           platform.rejected.end());
    if (platform.is_here()) {
      result.rejected.push_back(platform.shown + " of " + platform.name + ": " + result.name +
                                " is nearer");
    } else if (!result.is_here()) {
      result.notes.insert(result.notes.end(), platform.notes.begin(), platform.notes.end());
    }
  }
  reject_names_of_workers(Variables(around.environment), result);
  return result;
}

std::vector<std::string> add_platform(SplitArguments& split, const Platform& platform) {
  const auto given = [&](const char* option) { return split.find(option) != nullptr; };
  const GivenOption* alone = split.find("standalone");
  if (alone != nullptr && alone->value != "0") return leave_job_of_pods(split);
  leave_place_among_pods(split);
  const bool has_endpoint = given("master-addr") || given("rdzv-endpoint");
  // Whoever says all of it knows better: run_node.sh, or a step that holds several jobs.
  if (given("nnodes") && given("node-rank") && has_endpoint) return {};
  if (platform.is_here()) Addition(split, platform).add();
  return given("nnodes") ? std::vector<std::string>{} : platform.notes;
}

int port_of_job(long long job, long long step) {
  const long long place = (job % ports_count) * steps_apart + step % steps_apart;
  return static_cast<int>(ports_begin + place % ports_count);
}

}  // namespace ddprun::launcher
