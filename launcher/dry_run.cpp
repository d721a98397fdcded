// The plan of a launch, made by the functions of a launch, so that it tells no other story.
#include "launcher/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <cstdio>
#include <map>
#include <utility>

#include "launcher/attempt_choices.h"
#include "launcher/machine/local_addresses.h"
#include "launcher/machine/this_machine.h"
#include "launcher/options/endpoint_options.h"
#include "launcher/options/table.h"
#include "launcher/options/values.h"
#include "launcher/processes/child_guard.h"
#include "launcher/stall/nccl_ras.h"
#include "launcher/workers/worker_specs.h"
#include "rendezvous/contract/progress_page.h"
#include "rendezvous/contract/restart_memory_place.h"
#include "rendezvous/contract/spare_channel.h"
#include "rendezvous/contract/worker_key_place.h"
#include "rendezvous/control/first_cause.h"
#include "rendezvous/control/resolve.h"
#include "rendezvous/counted.h"
#include "rendezvous/host/host_name.h"
#include "rendezvous/host_and_port.h"
#include "rendezvous/time_text.h"

namespace ddprun::launcher {
namespace {

using rendezvous::counted;
using rendezvous::time_text;

constexpr const char* terminal_columns_variable = "DDPRUN_TERMINAL_COLUMNS";

class Plan {
 public:
  Plan(const LaunchOptions& options, const DryRunFacts& facts) : options_(options), facts_(facts) {}

  std::string text() {
    row("program", joined(options_.program), "");
    describe_nodes();
    describe_endpoint();
    row("restarts", std::to_string(options_.max_restarts), source("max-restarts"));
    if (!options_.node_check.empty()) {
      row("node check",
          fmt::format("{}, {} at most", options_.node_check,
                      time_text(options_.node_check_timeout)),
          source("node-check"));
    }
    if (options_.spares > 0) {
      row("spares",
          fmt::format("{} for local rank{} 0{}", counted(options_.spares, "process", "processes"),
                      options_.spares > 1 ? "s" : "",
                      options_.spares > 1 ? fmt::format(" to {}", options_.spares - 1) : ""),
          source("spares"));
    }
    if (options_.spares > 0 || options_.nproc_min < options_.nproc_per_node) {
      row("spare due",
          options_.spare_timeout ? time_text(*options_.spare_timeout) + " to be ready" : "none",
          source("spare-timeout"));
    }
    if (options_.restart_memory > 0) {
      row("memory",
          fmt::format("{} bytes of this node outlive its workers", options_.restart_memory),
          source("restart-memory"));
    }
    row("grace", time_text(options_.shutdown_timeout) + " from SIGTERM to SIGKILL",
        source("shutdown-timeout"));
    describe_stalls();
    describe_watching();
    describe_workers();
    for (const std::string& note : options_.notes) text_ += "note: " + note + "\n";
    return std::move(text_);
  }

 private:
  void describe_nodes();
  void describe_endpoint();
  void describe_secret();
  void describe_stalls();
  void describe_watching();
  void describe_workers();
  std::string address() const;  // Where workers find the store.
  std::string source_of_address() const;
  rendezvous::RoundStart first_round() const;
  WorkerSpecInputs spec_inputs(const rendezvous::RoundStart& round) const;
  std::string source_of_store() const;
  std::string source_of_variable(const std::string& name, const std::string& value) const;
  std::string value_now(const std::string& name, std::string value, int local_rank) const;

  bool elastic() const { return options_.backend == RendezvousBackend::C10d; }
  bool ranks_known() const { return !elastic() || options_.nnodes_max == 1; }
  // Rank 0 of the workers opens one.
  bool has_own_store() const { return own_store_host(options_, first_round()).has_value(); }
  // Whose it is depends on how many nodes come.
  bool store_unknown() const {
    return options_.worker_store && options_.nnodes_min == 1 && !ranks_known();
  }

  // "--nnodes=2", "PET_NNODES=2" or "default".
  std::string source(const std::string& option) const {
    return options_.source_of(option_row(option).name);
  }
  // Of the first of several options that was given.
  std::string source(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (source(name) != "default") return source(name);
    }
    return "default";
  }
  void row(const std::string& what, const std::string& value, const std::string& from) {
    text_ += fmt::format("{:<9} {}{}\n", what, value, from.empty() ? "" : "   (" + from + ")");
  }
  static std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) {
      const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$`*?") == word.npos;
      if (!text.empty()) text += ' ';
      text += plain ? word : "'" + word + "'";
    }
    return text;
  }

  const LaunchOptions& options_;
  const DryRunFacts& facts_;
  std::string text_;
};

const char* stall_reaction(OnStall on_stall) {
  switch (on_stall) {
    case OnStall::Report:
      break;
    case OnStall::Auto:
      return "stacks are told, and who is behind is killed where the others go on in place";
    case OnStall::Fail:
      return "stacks are told, and who is behind is killed";
  }
  return "stacks are told";
}

void Plan::describe_stalls() {
  if (!options_.stall_watch) return row("stalls", "are not looked for", source("stall-timeout"));
  const std::string after = options_.stall_timeout
                                ? "after " + time_text(*options_.stall_timeout)
                                : "after what was learnt of each phase, 60 s at least";
  row("stalls", fmt::format("{} without progress: {}", after, stall_reaction(options_.on_stall)),
      source({"stall-timeout", "on-stall"}));
}

void Plan::describe_nodes() {
  const int most = options_.nnodes_max;
  std::string nodes = counted(most, "node");
  if (elastic() && options_.nnodes_min != most) {
    nodes = fmt::format("{} to {} nodes, as they come", options_.nnodes_min, most);
  }
  row("nodes", nodes, source("nnodes"));
  row("workers",
      fmt::format("{} on this node, {}{}", options_.nproc_per_node, facts_.host_name,
                  options_.nproc_min < options_.nproc_per_node
                      ? fmt::format("; {} go on when others die, until these are replaced",
                                    options_.nproc_min)
                      : ""),
      source("nproc-per-node"));
  const int base = first_round().rank_base;
  if (!ranks_known()) {
    row("ranks", "given when the nodes have joined, rank 0 on the endpoint's host", "");
  } else {
    row("ranks",
        fmt::format("{} to {} of {}{}", base, base + options_.nproc_per_node - 1,
                    first_round().world_size,
                    most > 1 ? ", if every node starts as many workers" : ""),
        most > 1 ? "node rank: " + source("node-rank") : "");
  }
  if (most > 1) {
    row("wait", fmt::format("at most {} for all nodes", time_text(options_.join_timeout)),
        source("rdzv-conf"));
  }
}

void Plan::describe_endpoint() {
  if (meets_in_etcd(options_)) {
    row("endpoint", "found in etcd at " + options_.etcd.text(), options_.endpoint_sources.address);
    row("", "the first node there hosts the coordinator and the store, on any free port", "");
    row("job id", options_.run_id, options_.endpoint_sources.run_id);
    row("tie", "who goes on when nodes are lost: the same etcd", source("rdzv-backend"));
    return describe_secret();
  }
  const std::string port =
      options_.endpoint_port == 0 ? "a free port" : std::to_string(options_.endpoint_port);
  row("endpoint",
      fmt::format("{}, {}", address(), options_.endpoint_port == 0 ? port : "port " + port),
      fmt::format("address: {}; port: {}", source_of_address(), options_.endpoint_sources.port));
  const std::string where =
      facts_.plan.bind_address.empty() ? "all interfaces" : facts_.plan.bind_address;
  switch (facts_.plan.role) {
    case EndpointPlan::Role::Host:
      row("", "this node hosts the coordinator and the store, on " + where, "");
      break;
    case EndpointPlan::Role::HostIfFree:
      row("",
          "this node hosts the coordinator and the store, on " + where +
              ", unless another agent of this machine has the port already",
          "");
      break;
    case EndpointPlan::Role::Join:
      row("", "another node hosts the coordinator and the store; this one connects to it", "");
      break;
  }
  if (!facts_.resolve_error.empty()) row("", "cannot resolve it now: " + facts_.resolve_error, "");
  if (!facts_.plan.warning.empty()) row("", "warning: " + facts_.plan.warning, "");
  row("job id", options_.run_id, options_.endpoint_sources.run_id);
  if (!options_.tie_breaker.empty()) {
    row("tie", "who goes on when half of the nodes are lost: " + options_.tie_breaker + ".*",
        source("tie-breaker"));
  }
  if (options_.etcd.any()) {
    row("tie", "who goes on when nodes are lost: etcd at " + options_.etcd.text(),
        source("tie-breaker"));
  }
  if (options_.nnodes_max > 1) describe_secret();
}

// Where it lies, never what it is.
void Plan::describe_secret() {
  if (options_.auth == Auth::None) {
    row("secret", "none: whoever reaches the endpoint may join", source("auth"));
  } else if (!needs_secret(options_)) {
    row("secret", "none is needed: no other host can join", "");
  } else if (options_.secret_file.empty()) {
    row("secret", "none, and no home folder: --secret-file must name one", "");
  } else {
    row("secret",
        options_.secret_file + (options_.secret_file_given ? "" : ", made if it is not there"),
        source("secret-file"));
  }
}

// The round as it would be if every node were like this one.
rendezvous::RoundStart Plan::first_round() const {
  rendezvous::RoundStart round;
  round.max_restarts = options_.max_restarts;
  round.group_rank = ranks_known() ? options_.node_rank : 0;
  round.group_world_size = options_.nnodes_max;
  round.rank_base = round.group_rank * options_.nproc_per_node;
  round.world_size = options_.nnodes_max * options_.nproc_per_node;
  round.role_rank_base = round.rank_base;
  round.role_world_size = round.world_size;
  round.master_addr = address();
  round.master_port = options_.endpoint_port;
  return round;
}

std::string Plan::address() const {
  return facts_.plan.master_addr.empty() ? options_.endpoint_host : facts_.plan.master_addr;
}

std::string Plan::source_of_address() const {
  const std::string& given = options_.endpoint_sources.address;
  switch (facts_.plan.address_from) {
    case EndpointPlan::AddressFrom::Endpoint:
      break;
    case EndpointPlan::AddressFrom::LocalAddr:
      return source("local-addr");
    case EndpointPlan::AddressFrom::Machine:
      return "one of this machine's, for " + given;
  }
  return given;
}

std::string Plan::source_of_store() const {
  const std::string own = "rank 0 of the workers opens the store";
  if (store_unknown()) return own + " in a round of one node";
  return has_own_store() ? own : "ddprun hosts the store";
}

std::string Plan::source_of_variable(const std::string& name, const std::string& value) const {
  // As worker_specs.cpp clears them.
  const bool cleared = value == (name == terminal_columns_variable ? "0" : "");
  if (cleared && name.starts_with("DDPRUN_")) return "an outer launcher's is not for these";
  const std::map<std::string, std::string> known = {
      {"RANK", "first rank of this node + local rank"},
      {"LOCAL_RANK", options_.virtual_local_rank ? source("virtual-local-rank") : "the worker"},
      {"ROLE_RANK", "first rank of this node's role + local rank"},
      {"WORLD_SIZE", "nodes x workers"},
      {"LOCAL_WORLD_SIZE", source("nproc-per-node")},
      {"GROUP_RANK", "node rank: " + source("node-rank")},
      {"GROUP_WORLD_SIZE", source("nnodes")},
      {"ROLE_NAME", source("role")},
      {"ROLE_WORLD_SIZE", "all workers of that role"},
      {"MASTER_ADDR", has_own_store() ? "this node: " + source("local-addr") : source_of_address()},
      {"MASTER_PORT", has_own_store() ? "free in this attempt" : options_.endpoint_sources.port},
      {"DDPRUN_TERM", "the attempt's coordinator: 0 is the first one"},
      {"TORCHELASTIC_RESTART_COUNT", "the attempt"},
      {"TORCHELASTIC_MAX_RESTARTS", source("max-restarts")},
      {"TORCHELASTIC_RUN_ID", options_.endpoint_sources.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", source_of_store()},
      {"TORCHELASTIC_ERROR_FILE", source("log-dir")},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", source("signals-to-handle")},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING",
       facts_.environment("TORCH_NCCL_ASYNC_ERROR_HANDLING") ? "inherited" : "default"},
      {"OMP_NUM_THREADS", source("omp-threads") == "default"
                              ? "default, as there are several workers"
                              : source("omp-threads")},
      {"GLIBC_TUNABLES", "default, huge pages for malloc"},
      {"CUDA_VISIBLE_DEVICES", source("virtual-local-rank")},
      {ras_address_variable, "a free port, to ask NCCL who is missing in a stall"},
      {rendezvous::worker_key_variable, "descriptor with the workers' key"},
      {rendezvous::restart_memory_variable, "descriptor of --restart-memory"},
      {rendezvous::progress_page_variable, "where to say how far it is: ddprun status"},
      {rendezvous::rank_variable, "descriptor by which it may stay for another attempt"},
      {rendezvous::peer_word_limit_variable, "how long it waits for word of a lost peer"},
      {"DDPRUN_LAUNCHED_AT", "when ddprun was started, in seconds of CLOCK_MONOTONIC"},
      {guard_variable_name, "by which the guard knows what workers have started"},
      {"DDPRUN_ENCRYPT_GRADIENTS", source("encrypt-gradients")},
      {terminal_columns_variable, "for progress lines"}};
  const auto found = known.find(name);
  return found == known.end() ? "" : found->second;
}

// The value as it is known now: "..." for what only the start decides, and the folder of a worker
// written once for all.
std::string Plan::value_now(const std::string& name, std::string value, int local_rank) const {
  const bool of_round = name == "RANK" || name == "ROLE_RANK" || name == "WORLD_SIZE" ||
                        name == "ROLE_WORLD_SIZE" || name.rfind("GROUP_", 0) == 0;
  if (of_round && !ranks_known()) return "...";
  const bool unknown_place = meets_in_etcd(options_) || store_unknown();
  const bool unknown_port = unknown_place || has_own_store() || options_.endpoint_port == 0;
  if (name == "MASTER_PORT" && unknown_port) return "...";
  if (name == "MASTER_ADDR" && unknown_place) return "...";
  if (name == "TORCHELASTIC_USE_AGENT_STORE" && store_unknown()) return "...";
  if (name == "DDPRUN_LAUNCHED_AT" || name == guard_variable_name) return "...";
  const std::string folder = fmt::format("/attempt_0/{}/", local_rank);
  if (const auto at = value.rfind(folder); at != value.npos) {
    value.replace(at, folder.size(), "/attempt_0/LOCAL_RANK/");
  }
  return value;
}

// What is written or served while the job runs.
void Plan::describe_watching() {
  const auto url = [](const ListenPlace& place, const char* path) {
    const std::string port = place.port == 0 ? "a free port" : std::to_string(place.port);
    return fmt::format("http://{}{}", rendezvous::host_and_port(place.host, port), path);
  };
  if (!options_.metrics_file.empty()) {
    row("metrics", options_.metrics_file, source("metrics-file"));
  }
  if (options_.metrics_port) {
    row("metrics", url(*options_.metrics_port, "/metrics"), source("metrics-port"));
  }
  if (options_.status_page) row("page", url(*options_.status_page, "/"), source("status-page"));
}

// With what a launch has for its first attempt; only the start knows some of the values.
WorkerSpecInputs Plan::spec_inputs(const rendezvous::RoundStart& round) const {
  WorkerSpecInputs inputs{
      .options = options_,
      .round = round,
      .launched_at_s = 0,
      .host_name = facts_.host_name,
      .attempt_dir = options_.log_dir.empty()
                         ? fmt::format("TMPDIR/ddprun_{}_XXXXXX/attempt_0", options_.run_id)
                         : fmt::format("{}/{}_XXXXXX/attempt_0", options_.log_dir, options_.run_id),
      .environment = facts_.environment,
      .console_columns = facts_.console_columns,
      .cpus = [this] { return facts_.cpus; },
      .places = facts_.places,
      // Any number but -1: nothing is started.
      .key_fd = needs_secret(options_) ? rendezvous::worker_key_fd : -1,
      .memory_fd = options_.restart_memory > 0 ? rendezvous::restart_memory_fd : -1,
      .progress_fd = rendezvous::progress_page_fd,
      .may_park = another_may_follow(options_, round),
      .peer_word_limit = peer_word_limit(options_),
      .worker_store = {}};
  if (const auto host = own_store_host(options_, round)) {
    inputs.worker_store = WorkerStore{.host = *host, .port = 0};
  }
  if (gives_ras_address(options_, facts_.environment, facts_.gpus)) inputs.ras_address = "...";
  return inputs;
}

void Plan::describe_workers() {
  const rendezvous::RoundStart round = first_round();
  const WorkerSpecInputs inputs = spec_inputs(round);
  auto specs = make_worker_specs(inputs);
  for (const std::string& note : placement_notes(inputs)) row("cpus", note, "");
  for (WorkerSpec& spec : specs) spec.variables.emplace_back(guard_variable_name, "");
  using Values = std::map<std::string, std::string>;
  std::vector<Values> workers;
  for (const WorkerSpec& spec : specs) {
    Values& values = workers.emplace_back();
    for (const auto& [name, value] : spec.variables) {
      values[name] = value_now(name, value, spec.local_rank);
    }
  }
  text_ += "\nEnvironment of every worker, on top of the launcher's own\n";
  std::vector<std::string> own;
  for (const auto& [name, ignored] : specs.front().variables) {
    const std::string& value = workers.front()[name];
    const bool same = std::all_of(workers.begin(), workers.end(), [&, &name = name](Values& other) {
      return other[name] == value;
    });
    if (!same) own.push_back(name);
    text_ += fmt::format("  {:<60} {}\n", same ? name + "=" + value : name + "=(below)",
                         source_of_variable(name, value));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const bool same_command = specs[i].argv == specs.front().argv;
    if (own.empty() && same_command) continue;
    text_ += fmt::format("  local rank {}:", specs[i].local_rank);
    for (const std::string& name : own) text_ += fmt::format(" {}={}", name, workers[i][name]);
    text_ += same_command ? "\n" : "   " + joined(specs[i].argv) + "\n";
  }
}

}  // namespace

std::string describe_launch(const LaunchOptions& options, const DryRunFacts& facts) {
  return Plan(options, facts).text();
}

int run_dry(const LaunchOptions& options) {
  EndpointFacts endpoint{.own_host_name = rendezvous::own_host_name(),
                         .own_addresses = own_addresses(),
                         .is_local = is_local_address};
  DryRunFacts facts;
  asio::io_context io;
  if (needs_addresses(options)) {
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
          auto resolved = co_await rendezvous::resolve(options.endpoint_host);
          endpoint.addresses = std::move(resolved.addresses);
          if (options.endpoint_host != "localhost") {  // Where it listens is known all the same.
            facts.resolve_error = std::move(resolved.error);
          }
        },
        asio::detached);
    io.run();
  }
  facts.plan = plan_endpoint(options, endpoint);
  facts.host_name = endpoint.own_host_name;
  facts.environment = environment_variable;
  facts.cpus = cpus_at_once();
  facts.places = asked_places(options);
  facts.gpus = count_gpus(environment_variable("CUDA_VISIBLE_DEVICES"), "/dev");
  facts.console_columns = terminal_columns();
  std::fputs(describe_launch(options, facts).c_str(), stdout);
  const bool hosts = facts.plan.role == EndpointPlan::Role::Host;
  return hosts && !facts.resolve_error.empty() ? rendezvous::exit_status::internal : 0;
}

}  // namespace ddprun::launcher
