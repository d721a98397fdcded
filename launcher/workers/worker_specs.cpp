// Each worker's variables, arguments and output, put together from the options and the round: the
// one place where torchrun's contract with scripts is kept.
#include "launcher/workers/worker_specs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "launcher/machine/this_machine.h"
#include "launcher/output/prefix.h"
#include "rendezvous/contract/progress_page.h"
#include "rendezvous/contract/restart_memory_place.h"
#include "rendezvous/contract/spare_channel.h"
#include "rendezvous/contract/worker_key_place.h"
#include "rendezvous/control/first_cause.h"
#include "worker/worker_env.h"

namespace ddprun::launcher {
namespace {

bool uses_usual_threads(const WorkerSpecInputs& inputs) {
  return !inputs.options.omp_threads && inputs.options.nproc_per_node > 1 &&
         !inputs.environment("OMP_NUM_THREADS");
}

int workers_of(const WorkerSpecInputs& inputs) {
  return inputs.filled.empty() ? inputs.options.nproc_per_node
                               : static_cast<int>(inputs.filled.size());
}

int place_of(const WorkerSpecInputs& inputs, int local_rank) {
  return inputs.filled.empty() ? local_rank : inputs.filled[static_cast<std::size_t>(local_rank)];
}

std::string omp_threads(const WorkerSpecInputs& inputs, int place) {
  if (uses_usual_threads(inputs)) return "1";
  const auto& wanted = inputs.options.omp_threads;
  if (wanted != "auto") return wanted.value_or("");
  const auto worker = static_cast<std::size_t>(place);
  return worker < inputs.places.size() ? std::to_string(inputs.places[worker].cores) : "1";
}

std::vector<std::pair<std::string, std::string>> variables(const WorkerSpecInputs& inputs,
                                                           int local_rank) {
  const LaunchOptions& options = inputs.options;
  const rendezvous::RoundStart& round = inputs.round;
  worker::WorkerEnv env;
  env.rank = round.rank_base + local_rank;
  env.world_size = round.world_size;
  env.local_rank = options.virtual_local_rank ? 0 : local_rank;
  env.local_world_size = workers_of(inputs);
  env.group_rank = round.group_rank;
  env.group_world_size = round.group_world_size;
  env.role_name = options.role;
  env.role_rank = round.role_rank_base + local_rank;
  env.role_world_size = round.role_world_size;
  env.master_addr = round.master_addr;
  env.master_port = static_cast<std::uint16_t>(round.master_port);
  env.use_agent_store = !inputs.worker_store;
  if (inputs.worker_store) {
    env.master_addr = inputs.worker_store->host;
    env.master_port = static_cast<std::uint16_t>(inputs.worker_store->port);
  }
  env.term = round.term;
  env.launched_at_s = inputs.launched_at_s;
  env.restart_count = round.attempt;
  env.max_restarts = round.max_restarts;
  env.encrypt_gradients = options.encrypt_gradients;
  env.run_id = options.run_id;
  if (!inputs.attempt_dir.empty()) {
    env.error_file = fmt::format("{}/{}/error.json", inputs.attempt_dir, local_rank);
  }
  auto result = env.to_variables();
  const int place = place_of(inputs, local_rank);
  if (const std::string threads = omp_threads(inputs, place); !threads.empty()) {
    result.emplace_back("OMP_NUM_THREADS", threads);
  }
  // What LibTorch alone keeps in small blocks is 100 MB. In pages of 2 MiB it is there sooner when
  // a worker starts, and gone sooner when one has died, for which the next attempt waits. glibc
  // knows it from 2.35 on; older ones and other allocators look past it.
  if (!inputs.environment("GLIBC_TUNABLES")) {
    result.emplace_back("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
  }
  result.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING",
                      inputs.environment("TORCH_NCCL_ASYNC_ERROR_HANDLING").value_or("1"));
  result.emplace_back("TORCHELASTIC_SIGNALS_TO_HANDLE", signal_list(options.signals_to_handle));
  if (!inputs.ras_address.empty()) result.emplace_back("NCCL_RAS_ADDR", inputs.ras_address);
  if (options.virtual_local_rank) {
    const std::string name = device_list_name(inputs.environment);
    const std::string device = visible_device(place, inputs.environment(name));
    result.emplace_back("CUDA_VISIBLE_DEVICES", device);
    if (name != "CUDA_VISIBLE_DEVICES") result.emplace_back(name, device);
  }
  return result;
}

bool has(Std value, Std stream) {
  return (static_cast<unsigned>(value) & static_cast<unsigned>(stream)) != 0;
}

// "stdout" or "stderr".
StreamOutput stream_output(const WorkerSpecInputs& inputs, int local_rank, Std stream,
                           const char* name) {
  const LaunchOptions& options = inputs.options;
  const bool shown =
      options.local_ranks_filter.empty() || options.local_ranks_filter.count(local_rank) != 0;
  const bool tee = has(options.tee.of(local_rank), stream);
  const bool redirect = has(options.redirects.of(local_rank), stream);
  StreamOutput output;
  // Without the folder that there should be, the console is the only place left for it.
  output.console = shown && (tee || !redirect || inputs.attempt_dir.empty());
  if ((!tee && !redirect) || inputs.attempt_dir.empty()) return output;
  output.file = fmt::format("{}/{}/{}.log", inputs.attempt_dir, local_rank, name);
  output.rotation = options.log_rotation;
  const auto& filters = stream == Std::Out ? options.stdout_filters : options.stderr_filters;
  if (tee && shown && !filters.empty()) {
    output.filtered_file = fmt::format("{}/filtered_{}.log", inputs.attempt_dir, name);
    output.filters = filters;
  }
  return output;
}

// Scripts that parse what several workers print see it as torchrun passes it on: a stream has a
// prefix when it is tee'd, or nothing of this worker is and a template asks for one. People at a
// terminal see who wrote what.
struct Prefixed {
  LinePrefix prefix;
  bool out;
  bool err;
};
Prefixed line_prefix(const WorkerSpecInputs& inputs, int local_rank) {
  const LaunchOptions& options = inputs.options;
  const auto shown = options.local_ranks_filter.empty()
                         ? static_cast<std::size_t>(options.nproc_per_node)
                         : options.local_ranks_filter.size();
  const bool several_on_terminal = inputs.console_columns > 0 && shown > 1;
  const bool collapses = options.collapse_output && shown > 1;
  LinePrefix prefix{"", options.role, inputs.round.rank_base, inputs.host_name};
  const Std tee = options.tee.of(local_rank);
  const bool has_template = !options.log_line_prefix_template.empty();
  const bool both = several_on_terminal || collapses || (options.prefix_always && tee == Std::None);
  if (both || tee != Std::None) {
    prefix.pattern =
        has_template ? options.log_line_prefix_template : "[${role_name}${local_rank}]:";
  }
  return {prefix, both || has(tee, Std::Out), both || has(tee, Std::Err)};
}

WorkerOutput output_of(const WorkerSpecInputs& inputs, int local_rank) {
  WorkerOutput output;
  output.out = stream_output(inputs, local_rank, Std::Out, "stdout");
  output.err = stream_output(inputs, local_rank, Std::Err, "stderr");
  const Prefixed prefixed = line_prefix(inputs, local_rank);
  output.out.prefixed = prefixed.out;
  output.err.prefixed = prefixed.err;
  output.collapsed_prefix = prefixed.prefix;
  output.prefix = output.collapsed_prefix.of(local_rank);
  output.local_rank = local_rank;
  output.pty = inputs.options.pty;
  output.collapse = inputs.options.collapse_output && inputs.options.nproc_per_node > 1;
  return output;
}

// A worker whose stdout we forward to a terminal sees only a pipe. This tells it that it may draw a
// progress line, and how much of the terminal's width our prefix leaves.
std::optional<std::string> columns_left(const WorkerSpecInputs& inputs,
                                        const WorkerOutput& output) {
  if (inputs.console_columns == 0 || !output.out.console) return std::nullopt;
  const int taken = output.out.prefixed ? columns_of(output.prefix) : 0;
  return std::to_string(std::max(1, inputs.console_columns - taken));
}

// Ours, or nothing: what an outer launcher has put into our environment is not for our workers.
void give(const WorkerSpecInputs& inputs, WorkerSpec& spec, const char* name,
          const std::optional<std::string>& value, const char* nothing = "") {
  if (value || inputs.environment(name)) spec.variables.emplace_back(name, value.value_or(nothing));
}

// The number that a worker has the descriptor at, where it has one.
std::optional<std::string> number_of(int fd, int number) {
  return fd >= 0 ? std::optional(std::to_string(number)) : std::nullopt;
}

std::optional<std::string> page_of(const WorkerSpecInputs& inputs, int local_rank) {
  if (inputs.progress_fd < 0) return std::nullopt;
  return fmt::format("{}:{}", rendezvous::progress_page_fd,
                     rendezvous::progress_page_stride * static_cast<std::size_t>(local_rank));
}

// What no program of torchrun's needs.
void add_own_variables(const WorkerSpecInputs& inputs, WorkerSpec& spec) {
  namespace rdzv = rendezvous;
  give(inputs, spec, "DDPRUN_TERMINAL_COLUMNS", columns_left(inputs, spec.output), "0");
  give(inputs, spec, rdzv::worker_key_variable, number_of(inputs.key_fd, rdzv::worker_key_fd));
  give(inputs, spec, rdzv::restart_memory_variable,
       number_of(inputs.memory_fd, rdzv::restart_memory_fd));
  give(inputs, spec, rdzv::progress_page_variable, page_of(inputs, spec.local_rank));
  std::optional<std::string> channel, peer_word_limit;
  if (inputs.may_park) channel = std::to_string(rdzv::spare_fd);
  if (inputs.may_park) peer_word_limit = std::to_string(inputs.peer_word_limit.count());
  give(inputs, spec, rdzv::rank_variable, channel);
  give(inputs, spec, rdzv::peer_word_limit_variable, peer_word_limit);
  give(inputs, spec, rdzv::spare_variable, std::nullopt);
  if (!inputs.options.encrypt_gradients) {
    give(inputs, spec, worker::encrypt_gradients_variable, std::nullopt);
  }
}

// "worker 3", "workers 0-3": neighbours with the same place are told of together.
void add_binding_notes(const std::vector<WorkerCpus>& places, std::vector<std::string>& notes) {
  for (std::size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    const WorkerCpus& place = places[begin];
    for (end = begin + 1; end < places.size() && places[end].cpus == place.cpus &&
                          places[end].reason == place.reason;
         ++end) {
    }
    const std::string who = end - begin == 1 ? fmt::format("worker {}", begin)
                                             : fmt::format("workers {}-{}", begin, end - 1);
    notes.push_back(place.cpus.empty() ? fmt::format("{} not bound to CPUs: {}", who, place.reason)
                                       : fmt::format("{} on CPUs {}: {}", who,
                                                     format_cpu_list(place.cpus), place.reason));
  }
}

}  // namespace

WorkerSpec spare_of(const WorkerSpec& worker, const std::string& folder) {
  static const std::set<std::string> of_the_round = {"RANK",        "WORLD_SIZE",
                                                     "GROUP_RANK",  "GROUP_WORLD_SIZE",
                                                     "ROLE_RANK",   "ROLE_WORLD_SIZE",
                                                     "MASTER_ADDR", "MASTER_PORT",
                                                     "DDPRUN_TERM", "TORCHELASTIC_RESTART_COUNT"};
  WorkerSpec spare = worker;
  for (auto& [name, value] : spare.variables) {
    if (of_the_round.count(name) != 0) value = rendezvous::no_rank_yet;
    if (name == "TORCHELASTIC_ERROR_FILE") value.clear();  // The dead worker's.
    if (name == rendezvous::rank_variable) value.clear();  // Comes with the rank.
  }
  spare.is_spare = true;
  spare.variables.emplace_back(rendezvous::spare_variable, std::to_string(rendezvous::spare_fd));
  spare.output.prefix = fmt::format("[spare{}]:", worker.local_rank);
  spare.output.collapse = false;
  for (auto [stream, name] :
       {std::pair{&spare.output.out, "stdout"}, std::pair{&spare.output.err, "stderr"}}) {
    stream->prefixed = true;
    stream->filtered_file.clear();
    stream->filters.clear();
    stream->file =
        stream->file.empty() || folder.empty() ? "" : fmt::format("{}/{}.log", folder, name);
  }
  return spare;
}

std::vector<std::string> placement_notes(const WorkerSpecInputs& inputs) {
  const LaunchOptions& options = inputs.options;
  std::vector<std::string> notes;
  if (options.numa_binding != NumaBinding::None) add_binding_notes(inputs.places, notes);
  if (options.omp_threads == "auto") {
    std::string counts;
    bool same = true;
    for (int rank = 0; rank < options.nproc_per_node; ++rank) {
      const std::string threads = omp_threads(inputs, rank);
      same = same && threads == omp_threads(inputs, 0);
      counts += (counts.empty() ? "" : ", ") + threads;
    }
    const bool of_quota = !inputs.places.empty() && inputs.places.front().of_quota;
    notes.push_back(fmt::format("OMP_NUM_THREADS is {}: each worker's share of the {}",
                                same ? omp_threads(inputs, 0) : counts,
                                of_quota ? "control group's quota of CPUs" : "physical cores"));
  } else if (uses_usual_threads(inputs) && inputs.round.group_rank == 0) {
    const int cpus = inputs.cpus();
    if (cpus < 2 * options.nproc_per_node) return notes;
    notes.push_back(fmt::format(
        "OMP_NUM_THREADS is 1, as with torchrun, though there are {} CPUs for {} workers; "
        "--omp-threads auto shares them out",
        cpus, options.nproc_per_node));
  }
  return notes;
}

std::string signal_list(const std::vector<int>& signals) {
  std::string text;
  for (const int signal : signals) {
    if (!text.empty()) text += ',';
    text += rendezvous::signal_name(signal);
  }
  return text;
}

std::vector<WorkerCpus> asked_places(const LaunchOptions& options) {
  if (options.numa_binding == NumaBinding::None && options.omp_threads != "auto") return {};
  return worker_places(options.numa_binding, options.nproc_per_node);
}

std::vector<WorkerSpec> make_worker_specs(const WorkerSpecInputs& inputs) {
  std::vector<WorkerSpec> specs;
  for (int local_rank = 0; local_rank < workers_of(inputs); ++local_rank) {
    WorkerSpec spec;
    spec.local_rank = local_rank;
    spec.place = place_of(inputs, local_rank);
    spec.rank = inputs.round.rank_base + local_rank;
    spec.argv = worker_argv(inputs.options, local_rank);
    const auto place = static_cast<std::size_t>(spec.place);
    if (place < inputs.places.size()) spec.cpus = inputs.places[place].cpus;
    spec.output = output_of(inputs, local_rank);
    spec.variables = variables(inputs, local_rank);
    add_own_variables(inputs, spec);
    spec.key_fd = inputs.key_fd;
    spec.memory_fd = inputs.memory_fd;
    spec.progress_fd = inputs.progress_fd;
    spec.outlives_session = inputs.options.stay;
    spec.keeps_channel = inputs.may_park;
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace ddprun::launcher
