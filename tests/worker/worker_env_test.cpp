// The environment contract between launcher and worker.
#include "worker/worker_env.h"

#include <map>

#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/testing/variables.h"

using namespace ddprun::worker;

namespace {

using ddprun::testing::lookup_in;
using ddprun::testing::Variables;

WorkerEnv read(const Variables& variables) { return read_worker_env(lookup_in(variables)); }

std::string error_of(const Variables& variables) {
  return ddprun::testing::message_of<WorkerEnvError>([&] { read(variables); });
}

bool mentions(const std::string& text, const std::vector<std::string>& words) {
  INFO(text);
  bool all = !text.empty();
  for (const std::string& word : words) {
    INFO(word);
    CHECK(text.find(word) != std::string::npos);
    all = all && text.find(word) != std::string::npos;
  }
  return all;
}

const Variables two_of_four = {{"RANK", "2"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "0"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"GROUP_RANK", "1"},
                               {"GROUP_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "10.0.0.1"},
                               {"MASTER_PORT", "29500"}};

// As a program with a communicator among its global objects: those of a library that it links may
// be made later.
const WorkerEnv read_before_main =
    read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "host"}, {"MASTER_PORT", "1"}});

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

}  // namespace

TEST_CASE("the environment can be read before main", "[env]") {
  CHECK(read_before_main.rank == 1);
  CHECK(read_before_main.world_size == 2);
}

TEST_CASE("with no variables a worker is alone", "[env]") {
  const WorkerEnv env = read({});
  CHECK(env.rank == 0);
  CHECK(env.world_size == 1);
  CHECK(env.master_port == 0);
  CHECK_FALSE(env.launched);
}

TEST_CASE("what the launcher writes is what the worker reads", "[env]") {
  WorkerEnv written;
  written.rank = 5;
  written.world_size = 8;
  written.local_rank = 1;
  written.local_world_size = 4;
  written.group_rank = 1;
  written.group_world_size = 2;
  written.role_name = "trainer";
  written.role_rank = 3;
  written.role_world_size = 6;
  written.master_addr = "fe80::1";
  written.master_port = 65535;
  written.use_agent_store = true;
  written.restart_count = 2;
  written.term = 3;
  written.launched_at_s = 86'400;
  written.max_restarts = 7;
  written.run_id = "job 7";
  written.error_file = "/tmp/error.json";
  written.encrypt_gradients = true;
  const auto list = written.to_variables();

  const WorkerEnv env = read(Variables(list.begin(), list.end()));

  CHECK(env.to_variables() == list);
  CHECK(env.term == 3);
  CHECK(env.launched_at_s == 86'400);
  CHECK(env.launched);
  CHECK(env.use_agent_store);
  CHECK(env.encrypt_gradients);
  CHECK_FALSE(read({}).term);  // Torchrun says none.
}

TEST_CASE("the variables are those of torchrun", "[env]") {
  std::vector<std::string> names;
  for (const auto& [name, value] : WorkerEnv{}.to_variables()) names.push_back(name);
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK",
                                          "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK",
                                          "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE",
                                          "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_MAX_RESTARTS",
                                          "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
                                          "TORCHELASTIC_USE_AGENT_STORE", "WORLD_SIZE"});
}

TEST_CASE("a rank outside the world is refused with both variables named", "[env]") {
  CHECK(mentions(error_of(with(two_of_four, "RANK", "4")), {"RANK=4", "WORLD_SIZE=4", "0..3"}));
  CHECK(mentions(error_of(with(two_of_four, "LOCAL_RANK", "2")),
                 {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}));
  CHECK(mentions(error_of(with(two_of_four, "GROUP_RANK", "2")), {"GROUP_RANK=2"}));
  CHECK(mentions(error_of(with(two_of_four, "LOCAL_WORLD_SIZE", "5")),
                 {"LOCAL_WORLD_SIZE=5", "WORLD_SIZE=4"}));
}

TEST_CASE("what is not a number is refused with its value", "[env]") {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "GROUP_RANK",
                           "TORCHELASTIC_RESTART_COUNT", "DDPRUN_TERM"}) {
    for (const char* value : {"", "two", "-1", "1.5", " 1", "0x1", "99999999999"}) {
      CHECK(mentions(error_of(with(two_of_four, name, value)),
                     {name + std::string("=\"") + value + "\"", "whole number"}));
    }
  }
  CHECK(mentions(error_of(with(two_of_four, "MASTER_PORT", "70000")), {"70000", "65535"}));
  CHECK(mentions(error_of(with(two_of_four, "TORCHELASTIC_USE_AGENT_STORE", "yes")),
                 {"\"yes\"", "True or False"}));
}

TEST_CASE("several workers need to know where to meet", "[env]") {
  CHECK(mentions(error_of(without(two_of_four, "MASTER_PORT")), {"MASTER_PORT", "not set"}));
  CHECK(mentions(error_of(with(two_of_four, "MASTER_PORT", "0")), {"MASTER_PORT=0"}));
  CHECK(mentions(error_of(without(two_of_four, "MASTER_ADDR")), {"MASTER_ADDR", "not set"}));
  // All on one host: its loopback address will do.
  CHECK(read({{"RANK", "0"},
              {"WORLD_SIZE", "2"},
              {"LOCAL_RANK", "0"},
              {"LOCAL_WORLD_SIZE", "2"},
              {"MASTER_PORT", "1"}})
            .master_addr == "127.0.0.1");
}

TEST_CASE("half of a rank is refused", "[env]") {
  CHECK(mentions(error_of({{"RANK", "0"}}), {"RANK=0", "WORLD_SIZE"}));
  CHECK(mentions(error_of({{"WORLD_SIZE", "2"}}), {"WORLD_SIZE=2", "RANK is not set"}));
  CHECK(read({{"WORLD_SIZE", "1"}}).world_size == 1);
}

TEST_CASE("Open MPI's variables tell the rank", "[env]") {
  const WorkerEnv env = read({{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"MASTER_ADDR", "node0"},
                              {"MASTER_PORT", "29500"}});
  CHECK(env.rank == 3);
  CHECK(env.world_size == 4);
  CHECK(env.local_rank == 1);
  CHECK(env.local_world_size == 2);
  CHECK(env.master_addr == "node0");
}

TEST_CASE("PMI's variables tell the rank", "[env]") {
  const WorkerEnv env = read({{"PMI_RANK", "1"},
                              {"PMI_SIZE", "2"},
                              {"MPI_LOCALRANKID", "1"},
                              {"MPI_LOCALNRANKS", "2"},
                              {"MASTER_PORT", "29500"}});
  CHECK(env.rank == 1);
  CHECK(env.local_rank == 1);
  CHECK(env.local_world_size == 2);
}

TEST_CASE("a Slurm step's variables tell the rank, a batch script's do not", "[env]") {
  const Variables step = {{"SLURM_JOB_ID", "9"},         {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "1"},         {"SLURM_NTASKS", "8"},
                          {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "0"},
                          {"MASTER_ADDR", "n1"},         {"MASTER_PORT", "1"}};
  CHECK(read(step).rank == 1);
  CHECK(read(step).world_size == 2);  // The step's size, not the job's.

  const Variables batch = {{"SLURM_JOB_ID", "9"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}};
  CHECK(read(batch).world_size == 1);
  CHECK(read(with(batch, "SLURM_STEP_ID", "4294967291")).world_size == 1);
}

TEST_CASE("torchrun's variables win over the scheduler's", "[env]") {
  Variables variables = two_of_four;
  variables["OMPI_COMM_WORLD_RANK"] = "0";
  variables["OMPI_COMM_WORLD_SIZE"] = "9";
  CHECK(read(variables).rank == 2);
}

TEST_CASE("two sizes of the world that differ are refused", "[env]") {
  CHECK(mentions(
      error_of({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"WORLD_SIZE", "4"}}),
      {"WORLD_SIZE=4", "OMPI_COMM_WORLD_SIZE=2"}));
}

TEST_CASE("15.4: encryption is asked for by 1, and by nothing else that is taken") {
  const std::string name = "DDPRUN_ENCRYPT_GRADIENTS";
  CHECK(read(with(two_of_four, name, "1")).encrypt_gradients);
  for (const std::string off : {"0", ""}) {
    CHECK_FALSE(read(with(two_of_four, name, off)).encrypt_gradients);
  }
  CHECK_FALSE(read(two_of_four).encrypt_gradients);
  CHECK(mentions(error_of(with(two_of_four, name, "yes")), {name, "yes", "at most 1"}));
}
