// Decides what the job looks like from what was given, and refuses what contradicts itself. Words
// are taken apart in arguments.cpp, single values in values.cpp; where nodes meet is decided in
// endpoint_options.cpp, what runs in program.cpp.
#include "launcher/options/launch_options.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "launcher/options/arguments.h"
#include "launcher/options/endpoint_options.h"
#include "launcher/options/exit_code_map.h"
#include "launcher/options/hosts_options.h"
#include "launcher/options/program.h"
#include "launcher/options/secret_options.h"
#include "launcher/options/surroundings.h"
#include "launcher/options/table.h"
#include "launcher/options/values.h"
#include "launcher/output/prefix.h"
#include "launcher/output/whole_file.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;

constexpr int int_max = std::numeric_limits<int>::max();
constexpr std::size_t restart_memory_least = 64 << 10;  // Less would be a mistake in the unit.
constexpr std::size_t log_bytes_least = 4096;  // Smaller files would be a mistake in the unit.

class Decision {
 public:
  Decision(const SplitArguments& split, const EnvironmentLookup& environment)
      : given_(split), environment_(environment) {}

  void decide_shape();
  void decide_binding();
  void decide_failures();
  void decide_stalls();
  void decide_restarts();
  void decide_signals();
  void decide_output();
  void decide_store();
  void decide_local_rank(const std::string& called);
  void decide_console();
  void decide_log_files();
  void check_compatibility();
  bool on(const char* flag) const {
    const GivenOption* option = get(flag);
    return option != nullptr && option->value != "0";
  }

  LaunchOptions result;

 private:
  const GivenOption* get(const std::string& name) const { return given_.find(name); }
  void note(const std::string& text) { result.notes.push_back(text); }
  void check_visible_devices() const;

  const SplitArguments& given_;
  const EnvironmentLookup& environment_;
};

void Decision::decide_shape() {
  if (const auto* backend = get("rdzv-backend")) {
    const std::string chosen = parse_choice(*backend, {"static", "c10d", "etcd", "etcd-v2"});
    result.backend = chosen == "static" ? RendezvousBackend::Static : RendezvousBackend::C10d;
  }
  result.standalone = on("standalone");
  // As in torchrun, where --standalone stands for c10d with a free port.
  if (result.standalone) result.backend = RendezvousBackend::C10d;
  if (const auto* nodes = get("nnodes")) {
    const NodeRange range = parse_nnodes(*nodes);
    result.nnodes_min = range.min;
    result.nnodes_max = range.max;
    if (result.backend == RendezvousBackend::Static && range.min != range.max) {
      note(nodes->source + ": the static backend waits for all " + std::to_string(range.max) +
           " nodes; add --rdzv-backend=c10d to start with fewer");
      result.nnodes_min = range.max;
    }
  }
  if (const auto* workers = get("nproc-per-node")) {
    const WorkerRange range = parse_workers(*workers, environment_);
    result.nproc_per_node = range.max;
    result.nproc_min = range.min;
  }
  if (const auto* rank = get("node-rank")) {
    result.node_rank = parse_count(*rank, 0, int_max);
    result.node_rank_given = true;
    // Where nodes come and go it is a wish, and those beyond MAX stand by.
    if (result.backend == RendezvousBackend::Static && result.node_rank >= result.nnodes_max) {
      throw usage_error(rank->source + ": expected 0.." + std::to_string(result.nnodes_max - 1) +
                        ", as --nnodes is " + std::to_string(result.nnodes_max) +
                        " and ranks begin with 0");
    }
  }
  if (const auto* role = get("role")) {
    if (!is_printable(role->value)) {
      throw usage_error(role->source + ": expected a printable name");
    }
    result.role = role->value;
  }
  if (const auto* threads = get("omp-threads")) {
    if (threads->value != "auto") parse_count(*threads, 1, int_max, "auto, or ");
    result.omp_threads = threads->value;
  }
  decide_binding();
  result.virtual_local_rank = on("virtual-local-rank");
  if (result.virtual_local_rank) check_visible_devices();
}

void Decision::decide_binding() {
  const auto* option = get("numa-binding");
  if (option == nullptr) return;
  const std::string mode = parse_choice(*option, {"node", "socket", "exclusive", "core-complex"});
  result.numa_binding = mode == "node"        ? NumaBinding::Node
                        : mode == "socket"    ? NumaBinding::Socket
                        : mode == "exclusive" ? NumaBinding::Exclusive
                                              : NumaBinding::CoreComplex;
}

void Decision::check_visible_devices() const {
  const std::string name = device_list_name(environment_);
  const auto list = environment_(name);
  if (!list) return;
  // Each worker sees one entry alone, and two may share a device.
  int devices = 0;
  while (devices < result.nproc_per_node && !visible_device(devices, list).empty()) ++devices;
  if (devices < result.nproc_per_node) {
    throw usage_error("--virtual-local-rank needs a device for each of the " +
                      std::to_string(result.nproc_per_node) + " workers, but " + name + "=\"" +
                      *list + "\" names " + std::to_string(devices));
  }
}

void Decision::decide_failures() {
  if (const auto* restarts = get("max-restarts")) {
    result.max_restarts = parse_count(*restarts, 0, int_max);
  }
  if (const auto* timeout = get("shutdown-timeout")) {
    result.shutdown_timeout = parse_seconds(*timeout, timeout->value, milliseconds(0));
  } else if (const auto value = environment_("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) {
    const GivenOption variable{*value, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=" + *value};
    result.shutdown_timeout = parse_seconds(variable, *value, milliseconds(0));
  }
  decide_stalls();
  if (const auto* file = get("report"); file != nullptr && !file->value.empty()) {
    if (const std::string why = why_not_writable(file->value); !why.empty()) {
      throw usage_error(file->source + ": cannot write that file: " + why);
    }
    result.report_file = file->value;
  }
  if (const auto* map = get("exit-code-map")) result.exit_code_map = parse_exit_code_map(*map);
  decide_restarts();
  decide_signals();
}

void Decision::decide_stalls() {
  const auto* timeout = get("stall-timeout");
  if (timeout != nullptr && timeout->value == "off") {
    result.stall_watch = false;
  } else if (timeout != nullptr && timeout->value != "auto") {
    result.stall_timeout = parse_seconds(*timeout, timeout->value, milliseconds(100));
  }
  const auto* reaction = get("on-stall");
  if (reaction == nullptr) return;
  const std::string word = parse_choice(*reaction, {"auto", "report", "fail"});
  if (word == "report") result.on_stall = OnStall::Report;
  if (word != "fail") return;
  if (!result.stall_watch) {
    throw usage_error(reaction->source + " needs to know of stalls, and " + timeout->source +
                      " looks for none");
  }
  result.on_stall = OnStall::Fail;
}

void Decision::decide_restarts() {
  if (const auto* memory = get("restart-memory"); memory != nullptr && memory->value != "0") {
    result.restart_memory = parse_bytes(*memory, restart_memory_least);
  }
  if (result.nproc_min < result.nproc_per_node && result.max_restarts == 0) {
    note(get("nproc-per-node")->source +
         " is as its MAX alone without --max-restarts: the first loss ends the job");
    result.nproc_min = result.nproc_per_node;
  }
  if (const auto* spares = get("spares")) {
    result.spares = parse_count(*spares, 0, int_max);
    if (result.spares > result.nproc_per_node) {
      throw usage_error(spares->source +
                        ": each spare is for one of this node's workers, of which "
                        "there are " +
                        std::to_string(result.nproc_per_node));
    }
    // Of an elastic job's attempts some end because a node comes or goes.
    if (result.spares > 0 && result.max_restarts == 0 && result.nnodes_min == result.nnodes_max) {
      note(spares->source + " has no effect without --max-restarts: no worker is ever replaced");
      result.spares = 0;
    }
  }
  if (const auto* check = get("node-check"); check && check->value != "none") {
    result.node_check = check->value;
  }
  if (const auto* limit = get("node-check-timeout")) {
    result.node_check_timeout = parse_seconds(*limit, limit->value, milliseconds(1));
  }
  if (const auto* limit = get("spare-timeout")) {
    const auto time = parse_seconds(*limit, limit->value, milliseconds(0));
    result.spare_timeout = time.count() > 0 ? std::optional(time) : std::nullopt;
  }
  if (const auto* backoff = get("restart-backoff")) {
    result.restart_backoff = parse_seconds(*backoff, backoff->value, milliseconds(0));
  }
  if (const auto* same = get("max-same-failures")) {
    result.max_same_failures = parse_count(*same, 0, int_max);
  }
  if (const auto* healthy = get("reset-restarts-after"); healthy && healthy->value != "never") {
    result.reset_restarts_after = parse_seconds(*healthy, healthy->value, milliseconds(1));
  }
}

void Decision::decide_signals() {
  const auto* handled = get("signals-to-handle");
  const GivenOption usual{option_row("signals-to-handle").fallback, ""};
  result.signals_to_handle = parse_signals(handled != nullptr ? *handled : usual);
  const auto* forwarded = get("forward-signals");
  if (forwarded == nullptr || forwarded->value.empty() || forwarded->value == "none") return;
  result.signals_to_forward = parse_signals(*forwarded);
  for (const int signal : result.signals_to_forward) {
    const auto same =
        std::find(result.signals_to_handle.begin(), result.signals_to_handle.end(), signal);
    if (same == result.signals_to_handle.end()) continue;
    if (handled != nullptr) {
      throw usage_error(forwarded->source + ": one of them is in " + handled->source +
                        " too; a signal either stops the job or is passed on");
    }
    // Named by the user, so it leaves the usual list, which nobody named.
    result.signals_to_handle.erase(same);
  }
}

void Decision::decide_output() {
  result.quiet = on("quiet");
  result.stay = on("stay");
  result.store_auth = on("store-auth");
  result.encrypt_gradients = on("encrypt-gradients");
  if (const auto* redirects = get("redirects")) result.redirects = parse_std_map(*redirects);
  if (const auto* tee = get("tee")) result.tee = parse_std_map(*tee);
  if (const auto* ranks = get("local-ranks-filter"); ranks != nullptr && !ranks->value.empty()) {
    result.local_ranks_filter = parse_ranks(*ranks, ranks->value);
  }
  decide_console();
  decide_log_files();
}

void Decision::decide_console() {
  if (const auto* color = get("color")) {
    const std::string choice = parse_choice(*color, {"auto", "always", "never"});
    result.color = choice == "always"  ? ColorWhen::Always
                   : choice == "never" ? ColorWhen::Never
                                       : ColorWhen::Auto;
  }
  result.collapse_output = on("collapse-output");
  result.pty = on("pty");
  if (const auto* prefix = get("log-line-prefix-template")) {
    result.log_line_prefix_template = prefix->value;
    result.prefix_always = !prefix->value.empty();
  } else {
    result.log_line_prefix_template =
        environment_("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  }
  if (const auto unknown = unknown_in_prefix(result.log_line_prefix_template); !unknown.empty()) {
    note("${" + unknown +
         "} in the lines' prefix stays as it is: there are ${role_name}, ${rank}, "
         "${local_rank} and ${hostname}");
  }
}

void Decision::decide_log_files() {
  if (const auto* texts = get("duplicate-stdout-filters")) {
    result.stdout_filters = parse_texts(*texts);
  }
  if (const auto* texts = get("duplicate-stderr-filters")) {
    result.stderr_filters = parse_texts(*texts);
  }
  if (const auto* size = get("log-rotate")) {
    result.log_rotation.bytes_max = parse_bytes(*size, log_bytes_least);
  }
  if (const auto* keep = get("log-keep"); keep != nullptr && keep->value != "all") {
    result.log_rotation.keep = parse_count(*keep, 0, int_max, "all, or ");
    if (result.log_rotation.bytes_max == 0)
      note(keep->source + " has no effect without --log-rotate");
  }
  if (const auto* events = get("event-log")) result.event_log = parse_output_file(*events);
  if (const auto* file = get("metrics-file")) result.metrics_file = parse_output_file(*file);
  if (const auto* place = get("metrics-port")) result.metrics_port = parse_listen(*place);
  if (const auto* place = get("status-page")) result.status_page = parse_listen(*place);
  const auto* folder = get("log-dir");
  if (folder == nullptr || folder->value.empty()) return;
  if (folder->value == "/dev/null") {
    result.redirects = {};
    result.tee = {};
    return;
  }
  struct stat status {};
  if (::stat(folder->value.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    throw usage_error(folder->source + ": expected a folder, or a name that is still free");
  }
  // Workers get paths in it, and may go to another folder before they open them (Hydra does).
  std::error_code gone;
  const auto path = std::filesystem::absolute(folder->value, gone);
  result.log_dir = gone ? folder->value : path.string();
}

// torchrun reads the variable with the c10d backend alone.
void Decision::decide_store() {
  const char* const name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
  if (environment_(name) != "1") return;
  result.worker_store = result.backend == RendezvousBackend::C10d;
  if (!result.worker_store) {
    note(std::string(name) + "=1 has no effect without --rdzv-backend=c10d, as in torchrun");
  }
}

void Decision::check_compatibility() {
  if (const auto* option = get("exit-barrier-timeout")) {
    parse_seconds(*option, option->value, milliseconds(0));
  } else if (const auto value = environment_("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT")) {
    const GivenOption variable{*value, "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=" + *value};
    parse_seconds(variable, *value, milliseconds(0));
  }
  if (const auto* option = get("monitor-interval")) {
    parse_seconds(*option, option->value, milliseconds(0));
  }
  if (const auto* option = get("start-method")) {
    parse_choice(*option, {"spawn", "fork", "forkserver"});
  }
  if (const auto* option = get("event-log-handler")) {
    if (parse_choice(*option, {"null", "console", "dynamic_rendezvous"}) != "null") {
      note(option->source + " has no effect: --event-log FILE writes ddprun's events");
    }
  }
  if (environment_("TORCHELASTIC_ENABLE_FILE_TIMER") == "1") {
    note("TORCHELASTIC_ENABLE_FILE_TIMER=1 has no effect: ddprun has no timer server for workers");
  }
  if (const auto* option = get("logs-specs")) parse_choice(*option, {"default"});
}

void Decision::decide_local_rank(const std::string& called) {
  const bool asked = on("pass-local-rank"), denied = on("use-env");
  if (asked && denied) {
    throw usage_error("--use-env and --pass-local-rank contradict each other: give one of them");
  }
  result.local_rank_argument = asked || (called == "ddprun-launch" && !denied);
}

}  // namespace

Std StdMap::of(int local_rank) const {
  if (!is_map) return everywhere;
  const auto found = by_local_rank.find(local_rank);
  return found == by_local_rank.end() ? Std::None : found->second;
}

LaunchOptions parse_options(const std::vector<std::string>& arguments,
                            const EnvironmentLookup& environment, const std::string& launcher_path,
                            const std::string& called, StartedBy started_by) {
  SplitArguments split = split_arguments(arguments);
  add_variables(split, environment);
  add_secret_variables(split, environment);
  LaunchOptions begun;
  take_hosts(split, begun);
  const bool over_ssh = !begun.over_ssh.hosts.empty();
  if (!over_ssh && started_by == StartedBy::Anybody) {
    for (std::string& note : add_platform(split, read_platform(surroundings(environment)))) {
      begun.notes.push_back(std::move(note));
    }
  }
  Decision decision(split, environment);
  decision.result = std::move(begun);
  decision.decide_shape();
  decide_endpoint(split, decision.result);
  decide_conf(split, decision.result);
  decide_etcd(split, environment, decision.result);
  decide_tie_breaker(split, environment, decision.result);
  decide_secret(split, environment, decision.result);
  decision.decide_failures();
  decision.decide_output();
  decision.decide_store();
  decision.check_compatibility();
  decision.decide_local_rank(called);
  const ProgramRequest request{split.program, decision.on("module"), decision.on("no-python"),
                               decision.on("run-path")};
  if (over_ssh) {
    keep_program(request, decision.result);
  } else {
    choose_program(request, environment, launcher_path, decision.result);
  }
  decision.result.dry_run = decision.on("dry-run");
  for (const auto& [name, option] : split.options) {
    decision.result.sources[name] = option.source;
  }
  return std::move(decision.result);
}

std::string LaunchOptions::source_of(const std::string& option) const {
  const auto found = sources.find(option);
  return found == sources.end() ? "default" : found->second;
}

}  // namespace ddprun::launcher
