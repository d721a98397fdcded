// The command line of ddprun, PET_* and cluster variables -> LaunchOptions. Every check of what the
// user asked for happens here, before anything is started.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "launcher/hosts/host_list.h"
#include "launcher/machine/cpu_binding.h"
#include "launcher/options/on_stall.h"
#include "launcher/output/color.h"
#include "launcher/output/log_rotation.h"
#include "rendezvous/arbiter/etcd_servers.h"
#include "rendezvous/environment.h"

namespace ddprun::launcher {

enum class RendezvousBackend {
  Static,  // Exactly nnodes_max nodes with given ranks.
  C10d,    // Elastic: nnodes_min .. nnodes_max nodes, ranks in join order.
};

enum class Auth {
  Auto,    // A secret, where another host may join.
  Secret,  // A secret, wherever there are several nodes.
  None,    // Whoever reaches the port may join.
};

// Which streams of a local rank are redirected to or tee'd into files: torchrun's 0, 1, 2, 3.
enum class Std : unsigned { None = 0, Out = 1, Err = 2, All = 3 };
struct StdMap {
  Std everywhere = Std::None;
  std::map<int, Std> by_local_rank;  // Ranks not listed: None, as in torchrun.
  bool is_map = false;
  Std of(int local_rank) const;
};

// Where pages are served.
struct ListenPlace {
  std::string host = "127.0.0.1";  // Numeric.
  std::uint16_t port = 0;          // 0 = a free one.
};

// A job that this launcher starts on other hosts, by ssh, and runs no worker of itself.
struct OverSsh {
  std::vector<Host> hosts;                  // None: this launcher is a node's own.
  std::vector<std::string> workers;         // Of each host, as --nproc-per-node takes it.
  std::vector<std::string> exports;         // As -x takes them.
  std::vector<std::string> ssh_options;     // Words of ssh's command line.
  std::vector<std::string> node_arguments;  // Of each node's launcher, less what differs.
  bool copy_self = false;                   // To hosts that have no ddprun.
  bool endpoint_given = false;              // Otherwise found out from the hosts' answers,
  bool port_given = false;                  // and a port that is free on the first one.
};

// Which option or variable decided what several can decide, as in LaunchOptions::sources.
struct EndpointSources {
  std::string address = "default";
  std::string port = "default";
  std::string run_id = "default";
};

struct LaunchOptions {
  OverSsh over_ssh;

  // The job's shape.
  int nnodes_min = 1;
  int nnodes_max = 1;
  int nproc_per_node = 1;
  int nproc_min = 1;  // With so few this node goes on when the others have died.
  int node_rank = 0;
  bool node_rank_given = false;
  std::string role = "default";

  // The endpoint: where the coordinator and the store listen.
  RendezvousBackend backend = RendezvousBackend::Static;
  bool standalone = false;
  std::string endpoint_host = "127.0.0.1";
  std::uint16_t endpoint_port = 29500;  // 0 = a free port (one node only).
  std::optional<bool> is_host;          // Who listens there; unset: decided from the address.
  // Another node goes on if the endpoint's host is lost. Not given: elastic jobs alone.
  std::optional<bool> takeover;
  std::string tie_breaker;               // Where files say who goes on without a majority; "" = no.
  rendezvous::EtcdServers etcd;          // Or the servers that say it.
  bool store_auth = false;               // The store serves only who proves the workers' key.
  bool encrypt_gradients = false;        // Between workers' hosts; all nodes or none.
  std::vector<std::string> store_allow;  // Hosts and networks that may use the store besides.
  std::string run_id = "none";
  Auth auth = Auth::Auto;
  std::string secret_file;         // The user's own, unless one was given; "" = no home folder.
  bool secret_file_given = false;  // Then it must be there, and is not made.
  std::string local_addr;          // The address this node announces; "" = found out.

  // Limits.
  int max_restarts = 0;
  std::size_t restart_memory = 0;  // Bytes of this node that outlive its workers.
  std::string node_check;          // For a shell: whether this node is fit for the job; "" = it is.
  std::chrono::milliseconds node_check_timeout{30'000};
  int spares = 0;  // Processes kept ready on this node, for its first local ranks.
  std::optional<std::chrono::milliseconds> spare_timeout =
      std::chrono::minutes(10);                    // To be ready.
  std::chrono::milliseconds restart_backoff{500};  // Of the second restart in a row; then doubled.
  int max_same_failures = 5;                       // Quick and alike, in a row; 0: any number.
  std::optional<std::chrono::milliseconds> reset_restarts_after;  // Unset: never.
  std::chrono::milliseconds join_timeout{600'000};      // All nodes must have joined by then.
  std::chrono::milliseconds last_call_timeout{30'000};  // Elastic: wait for more than the minimum.
  std::chrono::milliseconds start_timeout{30'000};      // For a node to say that its workers run.
  std::chrono::milliseconds heartbeat_interval{1'000};
  std::chrono::milliseconds heartbeat_timeout{5'000};  // A silent node counts as lost after this.
  std::chrono::milliseconds shutdown_timeout{30'000};  // SIGTERM to SIGKILL.
  bool stall_watch = true;                             // Workers that stand still are noticed.
  std::optional<std::chrono::milliseconds> stall_timeout;  // Unset: learnt.
  OnStall on_stall = OnStall::Auto;

  // The program. Use worker_argv() for what to start.
  std::vector<std::string> program;  // argv of a worker; "${local_rank}" is replaced per worker.
  std::size_t first_argument = 1;    // program[first_argument...] are the user's own arguments.
  std::string program_name;          // As the user wrote it, for messages.
  bool virtual_local_rank = false;   // LOCAL_RANK=0 and one visible device each: visible_device().
  bool local_rank_argument = false;  // torch.distributed.launch without --use-env.

  // Output.
  std::string log_dir;  // "" = no log files unless redirects or tee ask for them.
  StdMap redirects;
  StdMap tee;
  std::set<int> local_ranks_filter;         // Console shows only these; empty = all.
  std::vector<std::string> stdout_filters;  // Tee'd lines with any of these also go to one file.
  std::vector<std::string> stderr_filters;
  LogRotation log_rotation;
  // Also without --tee. Not where torchrun's variable alone has a template, which it does not heed
  // then.
  bool prefix_always = false;
  std::string log_line_prefix_template;  // "" = "[${role_name}${local_rank}]:"
  std::string event_log;                 // A file of JSON lines; "" = none.
  std::string metrics_file;              // Prometheus's text, again and again; "" = none.
  std::optional<ListenPlace> metrics_port;
  std::optional<ListenPlace> status_page;
  ColorWhen color = ColorWhen::Auto;
  bool collapse_output = false;  // Equal console lines of several ranks become one.
  bool pty = false;              // Workers write to pseudo-terminals.
  bool quiet = false;

  std::map<int, int> exit_code_map;  // Other exit statuses for ddprun's own.
  std::string report_file;           // How the job ended, as JSON; "" = none.

  bool stay = false;  // Whoever started the job by ssh may go.

  std::vector<int> signals_to_handle;      // Signal numbers; the first asks all workers to stop.
  std::vector<int> signals_to_forward;     // Passed on to the workers, which go on.
  std::optional<std::string> omp_threads;  // "auto" or a number; unset: torchrun's rule.
  NumaBinding numa_binding = NumaBinding::None;
  bool worker_store = false;  // TORCH_DISABLE_SHARE_RDZV_TCP_STORE: rank 0 hosts the store.

  bool dry_run = false;  // Only say what would be done.

  // What was given: an option's name in the table -> "--nnodes=2" or "PET_NNODES=2". Others have
  // their default.
  std::map<std::string, std::string> sources;
  EndpointSources endpoint_sources;
  // "--nnodes=2", "PET_NNODES=2" or "default". `option`: by its name in the table.
  std::string source_of(const std::string& option) const;

  // What the user should know about options that did not have the effect one may expect, a line
  // each; print them unless `quiet`.
  std::vector<std::string> notes;
};

// What the user should read, and the exit status that goes with it: 0 for --help and --version,
// 2 for bad usage.
class UsageExit : public std::runtime_error {
 public:
  UsageExit(int status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

using rendezvous::EnvironmentLookup;

// `arguments` without argv[0]. `launcher_path` is ddprun's own path: a program that is neither a
// path nor on PATH is looked up beside it. `called` is the name it was started under: as
// "ddprun-launch" it behaves as torch.distributed.launch. `started_by`: an own one, which has
// decided what a platform could say. Throws UsageExit.
enum class StartedBy { Anybody, HostsLauncher };
LaunchOptions parse_options(const std::vector<std::string>& arguments,
                            const EnvironmentLookup& environment, const std::string& launcher_path,
                            const std::string& called = "ddprun",
                            StartedBy started_by = StartedBy::Anybody);

// The argv of one worker: "${local_rank}" (and "$local_rank"; "$$" is "$") in the user's arguments
// replaced, and --local-rank=N added first when local_rank_argument is set.
std::vector<std::string> worker_argv(const LaunchOptions& options, int local_rank);

// The variable that lists the devices: HIP_VISIBLE_DEVICES where that names any, because ROCm heeds
// it before CUDA_VISIBLE_DEVICES.
const char* device_list_name(const EnvironmentLookup& environment);

// The device of a worker with virtual_local_rank: its entry of the launcher's list, or its local
// rank when there is none.
std::string visible_device(int local_rank, const std::optional<std::string>& inherited_list);

}  // namespace ddprun::launcher
