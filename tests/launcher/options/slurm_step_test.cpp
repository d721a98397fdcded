// srun's variables as options.
#include "launcher/options/slurm_step.h"

#include <map>
#include <set>

#include "launcher/options/launch_options.h"
#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"
#include "tests/testing/variables.h"

using namespace ddprun::launcher;

namespace {

using ddprun::testing::check_contains;
using ddprun::testing::lookup_in;
using ddprun::testing::Variables;
using Words = std::vector<std::string>;

Variables step(const Variables& changed = {}) {
  Variables variables = changed;
  variables.merge(Variables{{"SLURM_JOB_ID", "4711"},
                            {"SLURM_STEP_ID", "2"},
                            {"SLURM_STEP_NUM_NODES", "2"},
                            {"SLURM_STEP_NUM_TASKS", "2"},
                            {"SLURM_STEP_NODELIST", "gpu[07,11]"},
                            {"SLURM_NODEID", "1"},
                            {"SLURM_NNODES", "4"},
                            {"SLURM_JOB_NODELIST", "gpu[01-11]"},
                            {"PATH", "/bin"}});
  return variables;
}

LaunchOptions parse_step(Words words, const Variables& variables) {
  words.push_back("/bin/true");
  return parse_options(words, lookup_in(variables), "/opt/bin/ddprun");
}

std::string refused_step(const Words& words, const Variables& variables) {
  try {
    parse_step(words, variables);
  } catch (const UsageExit& exit) {
    CHECK(exit.status() == 2);
    return exit.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a step of several nodes is one job on them", "[options][slurm]") {
  const LaunchOptions options = parse_step({"--nproc-per-node=4"}, step());
  CHECK(options.nnodes_min == 2);
  CHECK(options.nnodes_max == 2);
  CHECK(options.node_rank == 1);
  CHECK(options.nproc_per_node == 4);
  CHECK(options.endpoint_host == "gpu07");
  CHECK(options.endpoint_port == port_of_job(4711, 2));
  CHECK(options.run_id == "slurm-4711.2");
  CHECK(options.is_host == false);
  CHECK(options.sources.at("nnodes") == "SLURM_STEP_NUM_NODES=2");
  CHECK(options.sources.at("master-addr") == "SLURM_STEP_NODELIST=gpu[07,11]");
  CHECK(parse_step({}, step({{"SLURM_NODEID", "0"}})).is_host == true);
}

TEST_CASE("a step of several components meets on the first one's first node", "[options][slurm]") {
  const auto head = [](const Variables& changed) {
    return parse_step({}, step(changed)).sources.at("master-addr");
  };
  // Slurm sorts the step's list by name, and counts nodes by component.
  Variables of_job = {{"SLURM_STEP_NODELIST", "cpu[1-2],gpu7"},
                      {"SLURM_JOB_NODELIST_HET_GROUP_0", "gpu7"},
                      {"SLURM_JOB_NODELIST_HET_GROUP_1", "cpu[1-2]"}};
  CHECK(head(of_job) == "SLURM_JOB_NODELIST_HET_GROUP_0=gpu7");
  CHECK(parse_step({}, step(of_job)).endpoint_host == "gpu7");
  // srun that allocates by itself sets the old names alone.
  CHECK(head({{"SLURM_STEP_NODELIST", "n[1,3]"},
              {"SLURM_JOB_NODELIST_PACK_GROUP_0", "n3"},
              {"SLURM_JOB_NODELIST_PACK_GROUP_1", "n1"}}) == "SLURM_JOB_NODELIST_PACK_GROUP_0=n3");
  // --het-group: steps of the second component, of some of its nodes, of the second and third.
  of_job["SLURM_STEP_NODELIST"] = "cpu[1-2]";
  CHECK(head(of_job) == "SLURM_STEP_NODELIST=cpu[1-2]");
  of_job["SLURM_STEP_NODELIST"] = "cpu2";
  CHECK(head(of_job) == "SLURM_STEP_NODELIST=cpu2");
  of_job["SLURM_STEP_NODELIST"] = "a1,cpu[1-2]";
  of_job["SLURM_JOB_NODELIST_HET_GROUP_2"] = "a1";
  CHECK(head(of_job) == "SLURM_JOB_NODELIST_HET_GROUP_1=cpu[1-2]");
  // Components that share a node.
  CHECK(head({{"SLURM_STEP_NODELIST", "n[1-2]"},
              {"SLURM_JOB_NODELIST_HET_GROUP_0", "n2"},
              {"SLURM_JOB_NODELIST_HET_GROUP_1", "n[1-2]"}}) == "SLURM_STEP_NODELIST=n[1-2]");
}

TEST_CASE("what is given wins over the step", "[options][slurm]") {
  const LaunchOptions options =
      parse_step({"--nnodes=2", "--master-port=1234", "--rdzv-id=mine"}, step());
  CHECK(options.node_rank == 1);
  CHECK(options.endpoint_host == "gpu07");
  CHECK(options.endpoint_port == 1234);
  CHECK(options.run_id == "mine");
  CHECK(parse_step({"--master-addr=head"}, step()).endpoint_host == "head");
  CHECK(parse_step({"--master-addr=head"}, step()).endpoint_port == port_of_job(4711, 2));

  const LaunchOptions told =
      parse_step({"--nnodes=4", "--node-rank=3", "--master-addr=head"}, step());
  CHECK(told.nnodes_max == 4);
  CHECK(told.run_id == "none");
  CHECK(parse_step({"--standalone"}, step()).nnodes_max == 1);
}

TEST_CASE("an elastic job meets on the step's first node, and ranks are given there",
          "[options][slurm]") {
  const LaunchOptions options = parse_step({"--rdzv-backend=c10d", "--nnodes=1:2"}, step());
  CHECK(options.nnodes_min == 1);
  CHECK(options.nnodes_max == 2);
  CHECK_FALSE(options.node_rank_given);
  CHECK(options.endpoint_host == "gpu07");
  CHECK(options.endpoint_port == port_of_job(4711, 2));
}

TEST_CASE("a step that contradicts the options is refused", "[options][slurm]") {
  check_contains(refused_step({"--nnodes=3"}, step()), "--nnodes=3, but Slurm's step has 2 nodes");
  check_contains(refused_step({}, step({{"SLURM_STEP_NUM_TASKS", "8"}})),
                 "srun starts ddprun 8 times on 2 nodes");
  check_contains(
      refused_step({}, step({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NUM_NODES", "1"}})),
      "2 times on 1 node (");
  check_contains(refused_step({}, step({{"SLURM_NODEID", ""}})), "SLURM_NODEID is \"\"");
  check_contains(refused_step({}, step({{"SLURM_STEP_NODELIST", ""}})),
                 "SLURM_STEP_NODELIST is \"\"");
  // Separate jobs, said aloud.
  CHECK(parse_step({"--standalone"}, step({{"SLURM_STEP_NUM_TASKS", "8"}})).nnodes_max == 1);
}

TEST_CASE("outside of a step of several nodes Slurm's variables change nothing",
          "[options][slurm]") {
  Variables batch_shell = step();
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"}) {
    batch_shell.erase(name);
  }
  const Variables one_node{{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}};
  Variables shell_of_salloc = one_node;
  shell_of_salloc.merge(Variables{{"SLURM_STEP_ID", "4294967290"}, {"SLURM_JOB_NUM_NODES", "2"}});
  for (const Variables& variables : {batch_shell, step(one_node), step(shell_of_salloc)}) {
    const LaunchOptions options = parse_step({}, variables);
    CHECK(options.nnodes_max == 1);
    CHECK(options.endpoint_host == "127.0.0.1");
    CHECK(options.endpoint_port == 0);
    CHECK(options.run_id == "none");
  }
}

TEST_CASE("the shell of an allocation is no step, and is told how to start on all of its nodes",
          "[options][slurm]") {
  for (const char* id : {"4294967290", "2"}) {
    const Platform platform = read_slurm_step(lookup_in(step({{"SLURM_STEP_ID", id},
                                                              {"SLURM_STEP_NUM_NODES", "1"},
                                                              {"SLURM_STEP_NUM_TASKS", "1"},
                                                              {"SLURM_JOB_NUM_NODES", "2"}})));
    const bool is_step = id[0] == '2';
    CHECK(platform.name == (is_step ? "Slurm's step" : ""));
    REQUIRE(platform.notes.size() == (is_step ? 0 : 1));
    if (!is_step) check_contains(platform.notes[0], "this is no step of srun's");
  }
}

TEST_CASE("the first host of a list of Slurm's", "[slurm]") {
  CHECK(first_host("host") == "host");
  CHECK(first_host("a-1,b") == "a-1");
  CHECK(first_host("n[003-007,9],m1") == "n003");
  CHECK(first_host("r[2,4]c[10-11]-ib") == "r2c10-ib");
  CHECK(first_host("n[1") == "n[1");
  CHECK(first_host("") == "");
}

TEST_CASE("jobs and steps beside each other have other ports", "[slurm]") {
  std::set<int> ports;
  for (int job = 1'000'000; job < 1'000'100; ++job) {
    for (int step = 0; step < 8; ++step) {
      ports.insert(port_of_job(job, step));
      CHECK(port_of_job(job, step) >= 20'000);
      CHECK(port_of_job(job, step) < 32'000);
    }
  }
  CHECK(ports.size() == 800);
}
