// What a worker process knows about its place in the job: torchrun's environment contract.
//
// `ddprun` writes it (launcher/), a training process reads it (worker/, trainer/); both use this
// file, so the two sides cannot drift apart. No library but the standard one: the launcher links it
// too. Source of names and meanings: torchrun's documentation, "Environment Variables".
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/environment.h"

namespace ddprun::worker {

constexpr const char* encrypt_gradients_variable = "DDPRUN_ENCRYPT_GRADIENTS";

struct WorkerEnv {
  int rank = 0;                           // RANK: 0 .. world_size-1 over the whole job.
  int world_size = 1;                     // WORLD_SIZE: workers of the whole job.
  int local_rank = 0;                     // LOCAL_RANK: 0 .. local_world_size-1 on this node.
  int local_world_size = 1;               // LOCAL_WORLD_SIZE: workers on this node.
  int group_rank = 0;                     // GROUP_RANK: this node's rank among nodes.
  int group_world_size = 1;               // GROUP_WORLD_SIZE: nodes of the job.
  std::string role_name = "default";      // ROLE_NAME
  int role_rank = 0;                      // ROLE_RANK: rank among workers of the same role.
  int role_world_size = 1;                // ROLE_WORLD_SIZE
  std::string master_addr = "127.0.0.1";  // MASTER_ADDR: where the c10d store listens.
  std::uint16_t master_port = 0;          // MASTER_PORT: 0 = no store (a world of one needs none).
  bool use_agent_store = false;  // TORCHELASTIC_USE_AGENT_STORE: the launcher hosts the store, so
                                 // rank 0 too connects as a client. False: rank 0 hosts it.
  int restart_count = 0;         // TORCHELASTIC_RESTART_COUNT: the attempt, equal on all nodes.
  // DDPRUN_TERM: of the attempt, equal on all nodes; grows when another node coordinates the job.
  // Nothing under launchers that know of no terms.
  std::optional<int> term;
  // DDPRUN_LAUNCHED_AT: when this node's launcher started, in whole seconds of the clock that all
  // processes of a machine share (CLOCK_MONOTONIC, std::chrono::steady_clock). The same in all of
  // its attempts. Nothing under other launchers.
  std::optional<int> launched_at_s;
  int max_restarts = 0;         // TORCHELASTIC_MAX_RESTARTS
  std::string run_id = "none";  // TORCHELASTIC_RUN_ID
  std::string
      error_file;  // TORCHELASTIC_ERROR_FILE: where to write the cause of death; "" = nowhere.

  // DDPRUN_ENCRYPT_GRADIENTS: 1 = what ranks send each other over TCP is sealed.
  bool encrypt_gradients = false;

  // True when a launcher (torchrun or ddprun) started this process.
  bool launched = false;

  // Workers that were started by hand; meet_workers() of meeting.h fills in what is missing.
  std::string rendezvous_file;         // file://: where rank 0 says where its store is.
  bool local_rank_known = true;        // False: `local_rank` is a guess ...
  bool local_world_size_known = true;  // ... and `local_world_size` and the group's are.
  std::string own_address;             // Where this worker listens; "" = on its way to the store.

  // `rank` and `world_size` as they were read. They stay where somebody changes those two to a
  // place within a group of the job's ranks (CommunicatorOptions::group). Nothing: as those two.
  // So who keeps worlds of some of the ranks apart by a run_id, or by a master_addr and master_port
  // of their own, resets both: each is then a job to itself and needs no name.
  std::optional<int> job_rank;
  std::optional<int> job_world_size;

  // The variables that the launcher sets for this worker, as NAME, value.
  std::vector<std::pair<std::string, std::string>> to_variables() const;
};

// What a worker was told on its command line, by the names of PyTorch's init_process_group(). What
// is given here wins over the environment.
struct InitMethod {
  // env://            where to meet is in MASTER_ADDR and MASTER_PORT
  // tcp://HOST:PORT   rank 0 runs on HOST and hosts a store there
  // file:///PATH      a file that all workers see and rank 0 may write; the next job may take it
  // Each may end in ?rank=R&world_size=W, as PyTorch's may.
  std::string url = "env://";
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<int> local_rank;
  bool needs_store = true;  // False for MPI, whose processes know each other already.
};

// An InitMethod's url, taken apart.
struct MeetingPlace {
  enum class Kind { Environment, Tcp, File };
  Kind kind = Kind::Environment;
  std::string host;        // Tcp.
  std::uint16_t port = 0;  // Tcp.
  std::string path;        // File; absolute.
  std::optional<int> rank;
  std::optional<int> world_size;
};

// Throws WorkerEnvError that says what is wrong with `url` and what it may be.
MeetingPlace parse_init_url(const std::string& url);

// Variables or options that are missing, not numbers, or that contradict each other (RANK >=
// WORLD_SIZE). The message names the variable, its value and what was expected.
class WorkerEnvError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using rendezvous::environment_variable;
using rendezvous::EnvironmentLookup;

// Reads torchrun's variables; then, when RANK is unset, those of Open MPI (OMPI_COMM_WORLD_*), PMI
// (PMI_RANK, PMI_SIZE) and Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID). With none of them it
// is a world of one. Throws WorkerEnvError.
WorkerEnv read_worker_env(const EnvironmentLookup& lookup);

// The same for a worker that was also told something on its command line.
WorkerEnv read_worker_env(const InitMethod& method, const EnvironmentLookup& lookup);

// The same from this process's environment.
WorkerEnv read_worker_env();
WorkerEnv read_worker_env(const InitMethod& method);

}  // namespace ddprun::worker
