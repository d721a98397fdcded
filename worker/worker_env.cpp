// Reading and writing the environment contract of worker_env.h.
#include "worker/worker_env.h"

#include <array>
#include <cstdint>
#include <limits>

#include "rendezvous/contract/spare_channel.h"
#include "rendezvous/parse_number.h"
#include "worker/init_method.h"

namespace ddprun::worker {
namespace {

constexpr int int_max = std::numeric_limits<int>::max();

// The first one that is set counts; null: no other.
using Names = std::array<const char*, 2>;

// The names under which one launcher tells a process its place. Of constants alone: a program may
// ask while its global objects are made, when those of this file may not be there.
struct Source {
  const char* rank;
  Names world_size;
  Names local_rank;
  Names local_world_size;
};

constexpr Source torchrun_names = {"RANK", {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}};
constexpr Source open_mpi_names = {"OMPI_COMM_WORLD_RANK",
                                   {"OMPI_COMM_WORLD_SIZE"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE"}};
constexpr Source pmi_names = {"PMI_RANK",
                              {"PMI_SIZE"},
                              {"PMI_LOCAL_RANK", "MPI_LOCALRANKID"},
                              {"PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"}};
// Step values before job values: a step may be smaller than its job.
constexpr Source slurm_names = {
    "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}, {}};

const char* last_of(const Names& names) { return names[1] != nullptr ? names[1] : names[0]; }

class Reader {
 public:
  explicit Reader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  bool has(const char* name) const { return lookup_(name).has_value(); }
  std::string text(const char* name, const std::string& fallback) const {
    return lookup_(name).value_or(fallback);
  }

  // The whole number in a variable, or nothing when it is unset.
  std::optional<int> number(const char* name, int least, int most = int_max) const {
    const auto value = lookup_(name);
    if (!value) return std::nullopt;
    const auto parsed = rendezvous::parse_number<int>(*value);
    if (!parsed || *parsed < least || *parsed > most) {
      std::string range = "a whole number of at least " + std::to_string(least);
      if (most != int_max) range += " and at most " + std::to_string(most);
      throw WorkerEnvError(std::string(name) + "=\"" + *value + "\": expected " + range);
    }
    return parsed;
  }

  // The first of `names` that is set.
  const char* first_set(const Names& names) const {
    for (const char* name : names) {
      if (name != nullptr && has(name)) return name;
    }
    return nullptr;
  }

 private:
  const EnvironmentLookup& lookup_;
};

void expect_below(const std::string& name, int value, const std::string& limit_name, int limit) {
  if (value < limit) return;
  throw WorkerEnvError(name + "=" + std::to_string(value) + " but " + limit_name + "=" +
                       std::to_string(limit) + ": " + name + " must be in 0.." +
                       std::to_string(limit - 1));
}

// The shell of a Slurm batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS, but is no task
// of any step: a program started there without srun is alone.
bool is_slurm_batch_shell(const Reader& reader) {
  constexpr std::uint64_t first_special_step = 0xFFFFFFF0;  // Batch, interactive, extern, ...
  if (!reader.has("SLURM_JOB_ID")) return false;
  const auto step = rendezvous::parse_number<std::uint64_t>(reader.text("SLURM_STEP_ID", ""));
  return !step || *step >= first_special_step;
}

const Source* choose_source(const Reader& reader) {
  // RANK first: a ddprun or torchrun that mpirun or srun has started passes their variables on.
  for (const Source* source : {&torchrun_names, &open_mpi_names, &pmi_names}) {
    if (reader.has(source->rank)) return source;
  }
  if (reader.has(slurm_names.rank) && !is_slurm_batch_shell(reader)) return &slurm_names;
  return nullptr;
}

void read_ranks(const Reader& reader, const Source& source, WorkerEnv& env) {
  env.rank = *reader.number(source.rank, 0);
  const char* size_name = reader.first_set(source.world_size);
  if (size_name == nullptr) {
    throw WorkerEnvError(std::string(source.rank) + "=" + std::to_string(env.rank) +
                         " is set but " + last_of(source.world_size) +
                         " is not: expected both, or neither for a single process");
  }
  env.world_size = *reader.number(size_name, 1);
  expect_below(source.rank, env.rank, size_name, env.world_size);
  const auto asked = reader.number("WORLD_SIZE", 1);
  if (asked && *asked != env.world_size) {
    throw WorkerEnvError("WORLD_SIZE=" + std::to_string(*asked) + " but " + size_name + "=" +
                         std::to_string(env.world_size) + ": expected the same number");
  }

  const char* local_rank_name = reader.first_set(source.local_rank);
  env.local_rank_known = local_rank_name != nullptr || env.world_size == 1;
  if (local_rank_name != nullptr) env.local_rank = *reader.number(local_rank_name, 0);
  const char* local_size_name = reader.first_set(source.local_world_size);
  if (local_size_name != nullptr) {
    env.local_world_size = *reader.number(local_size_name, 1);
    if (local_rank_name != nullptr) {
      expect_below(local_rank_name, env.local_rank, local_size_name, env.local_world_size);
    }
    if (env.local_world_size > env.world_size) {
      throw WorkerEnvError(std::string(local_size_name) + "=" +
                           std::to_string(env.local_world_size) + " but " + size_name + "=" +
                           std::to_string(env.world_size) +
                           ": a node cannot have more workers than the job");
    }
  } else {
    env.local_world_size = env.local_rank + 1;  // At least this many.
    env.local_world_size_known = env.world_size == 1;
  }
}

// What only torchrun and ddprun say; each has a sensible value when it is missing.
void read_group(const Reader& reader, WorkerEnv& env) {
  env.group_rank = reader.number("GROUP_RANK", 0).value_or(0);
  env.group_world_size = reader.number("GROUP_WORLD_SIZE", 1).value_or(env.group_rank + 1);
  expect_below("GROUP_RANK", env.group_rank, "GROUP_WORLD_SIZE", env.group_world_size);
  env.role_name = reader.text("ROLE_NAME", env.role_name);
  env.role_rank = reader.number("ROLE_RANK", 0).value_or(env.rank);
  env.role_world_size = reader.number("ROLE_WORLD_SIZE", 1).value_or(env.world_size);
  expect_below("ROLE_RANK", env.role_rank, "ROLE_WORLD_SIZE", env.role_world_size);
  env.restart_count = reader.number("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
  env.term = reader.number("DDPRUN_TERM", 0);
  env.launched_at_s = reader.number("DDPRUN_LAUNCHED_AT", 0);
  env.max_restarts = reader.number("TORCHELASTIC_MAX_RESTARTS", 0).value_or(0);
  env.launched = reader.has("TORCHELASTIC_RUN_ID");
  env.run_id = reader.text("TORCHELASTIC_RUN_ID", env.run_id);
  env.error_file = reader.text("TORCHELASTIC_ERROR_FILE", "");
  // As an empty one is for ddprun: as if it were not set.
  if (!reader.text(encrypt_gradients_variable, "").empty()) {
    env.encrypt_gradients = reader.number(encrypt_gradients_variable, 0, 1).value_or(0) == 1;
  }
}

bool under_mpi(const Reader& reader) {
  return reader.has(open_mpi_names.rank) || reader.has(pmi_names.rank);
}

void read_endpoint(const Reader& reader, const InitMethod& method, WorkerEnv& env) {
  const std::string addr = reader.text("MASTER_ADDR", "");
  const int port = reader.number("MASTER_PORT", 0, 65'535).value_or(0);
  const std::string world = "a world of " + std::to_string(env.world_size);
  if (env.world_size > 1 && port == 0 && method.needs_store) {
    throw WorkerEnvError(
        std::string(reader.has("MASTER_PORT") ? "MASTER_PORT=0" : "MASTER_PORT is not set") +
        " but " + world + " needs it: " +
        (under_mpi(reader) ? "give --backend mpi, whose workers know each other already; " : "") +
        "give --init-method tcp://HOST:PORT, a free port where rank 0 is; start the workers with "
        "ddprun, which sets it; or set it to such a port, the same on every rank");
  }
  if (env.world_size > env.local_world_size && addr.empty() && method.needs_store) {
    throw WorkerEnvError("MASTER_ADDR is not set but " + world +
                         " needs it: set it to the address of the host of rank 0, the same on "
                         "every rank");
  }
  if (!addr.empty()) env.master_addr = addr;
  env.master_port = static_cast<std::uint16_t>(port);

  const std::string store = reader.text("TORCHELASTIC_USE_AGENT_STORE", "False");
  if (store != "True" && store != "False") {
    throw WorkerEnvError("TORCHELASTIC_USE_AGENT_STORE=\"" + store + "\": expected True or False");
  }
  env.use_agent_store = store == "True";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> WorkerEnv::to_variables() const {
  const auto text = [](int number) { return std::to_string(number); };
  std::vector<std::pair<std::string, std::string>> variables = {
      {"LOCAL_RANK", text(local_rank)},
      {"RANK", text(rank)},
      {"LOCAL_WORLD_SIZE", text(local_world_size)},
      {"WORLD_SIZE", text(world_size)},
      {"GROUP_RANK", text(group_rank)},
      {"GROUP_WORLD_SIZE", text(group_world_size)},
      {"ROLE_NAME", role_name},
      {"ROLE_RANK", text(role_rank)},
      {"ROLE_WORLD_SIZE", text(role_world_size)},
      {"MASTER_ADDR", master_addr},
      {"MASTER_PORT", text(master_port)},
      {"TORCHELASTIC_RESTART_COUNT", text(restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", text(max_restarts)},
      {"TORCHELASTIC_RUN_ID", run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", use_agent_store ? "True" : "False"},
      {"TORCHELASTIC_ERROR_FILE", error_file},
  };
  if (term) variables.emplace_back("DDPRUN_TERM", text(*term));
  if (launched_at_s) variables.emplace_back("DDPRUN_LAUNCHED_AT", text(*launched_at_s));
  if (encrypt_gradients) variables.emplace_back(encrypt_gradients_variable, "1");
  return variables;
}

WorkerEnv read_worker_env(const InitMethod& method, const EnvironmentLookup& lookup) {
  if (lookup("RANK") == rendezvous::no_rank_yet) {
    throw WorkerEnvError(
        "RANK=\"spare\": ddprun --spares keeps this process ready and has not given it a rank: "
        "call wait_for_rank() (worker/wait_for_rank.h) before the environment is read");
  }
  const MeetingPlace place = parse_init_url(method.url);
  const bool has_rank = choose_source(Reader(lookup)) != nullptr;
  const auto given = init_variables(method, place, has_rank, lookup);
  const EnvironmentLookup both = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = given.find(name);
    return found == given.end() ? lookup(name) : std::optional(found->second);
  };
  const Reader reader(both);
  WorkerEnv env;
  if (const Source* source = choose_source(reader)) {
    read_ranks(reader, *source, env);
  } else if (const int size = reader.number("WORLD_SIZE", 1).value_or(1); size > 1) {
    throw WorkerEnvError("WORLD_SIZE=" + std::to_string(size) +
                         " but RANK is not set: expected 0.." + std::to_string(size - 1) +
                         "; start the program with ddprun, or set RANK (--rank) for each process");
  }
  read_group(reader, env);
  InitMethod needs = method;
  if (place.kind == MeetingPlace::Kind::File) {
    needs.needs_store = false;
    if (env.world_size > 1) env.rendezvous_file = place.path;
  }
  read_endpoint(reader, needs, env);
  if (!env.rendezvous_file.empty()) env.master_port = 0;  // The file will say it.
  // A number of this process, not a count of the node's: nothing else is known of the node.
  if (method.local_rank) env.local_rank = *method.local_rank;
  env.job_rank = env.rank;
  env.job_world_size = env.world_size;
  return env;
}

WorkerEnv read_worker_env(const EnvironmentLookup& lookup) { return read_worker_env({}, lookup); }

WorkerEnv read_worker_env() { return read_worker_env(environment_variable); }

WorkerEnv read_worker_env(const InitMethod& method) {
  return read_worker_env(method, environment_variable);
}

}  // namespace ddprun::worker
