// What platforms say of a process's place, with the values that they really set, and what ddprun
// env shows of it.
#include "launcher/options/platform.h"

#include <map>
#include <string>
#include <vector>

#include "launcher/options/environment_report.h"
#include "launcher/options/subcommands.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"
#include "tests/testing/variables.h"

using namespace ddprun::launcher;
using ddprun::testing::contains;

namespace {

using Texts = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

struct Place {
  Texts variables;
  Texts files = {};
  std::string own_host = "host-b";
};

Platform platform_of(const Place& place) {
  const auto in = [](const Texts& texts, const std::string& name) {
    const auto found = texts.find(name);
    return found == texts.end() ? std::nullopt : std::optional(found->second);
  };
  return read_platform(
      {[&](const std::string& name) { return in(place.variables, name); }, place.own_host,
       [&](const std::string& path) { return in(place.files, path).value_or(""); }});
}

// "nodes 2 rank 1 at 10.0.0.1 port 29500", or the refusal. What nobody says is left out.
std::string shape_of(const Place& place, const Words& words = {}) {
  SplitArguments split = split_arguments(words);
  add_variables(split, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = place.variables.find(name);
    return found == place.variables.end() ? std::nullopt : std::optional(found->second);
  });
  std::vector<std::string> notes;
  try {
    notes = add_platform(split, platform_of(place));
  } catch (const UsageExit& exit) {
    CHECK(exit.status() == 2);
    return exit.what();
  }
  std::string text;
  for (const auto& [what, option] :
       {std::pair("nodes ", "nnodes"), std::pair(" rank ", "node-rank"),
        std::pair(" at ", "master-addr"), std::pair(" port ", "master-port")}) {
    if (const GivenOption* given = split.find(option)) text += what + given->value;
  }
  for (const std::string& note : notes) text += " (" + note + ")";
  return text;
}

Place mpirun(const std::string& processes, const std::string& on_this_host) {
  return {{{"OMPI_COMM_WORLD_RANK", "1"},
           {"OMPI_COMM_WORLD_SIZE", processes},
           {"OMPI_COMM_WORLD_LOCAL_SIZE", on_this_host}}};
}

}  // namespace

TEST_CASE("17.3: where no platform is, and where it has one process, nothing changes",
          "[platform]") {
  CHECK(shape_of({{}}) == "");
  CHECK(shape_of(mpirun("1", "1")) == "");
  CHECK(shape_of({{{"SKYPILOT_NODE_RANK", "0"}, {"SKYPILOT_NUM_NODES", "1"}}}) == "");
  CHECK(shape_of({{{"SM_HOSTS", "[\"algo-1\"]"}, {"SM_CURRENT_HOST", "algo-1"}}}) == "");
  CHECK(shape_of({{{"LSB_JOBID", "7"}, {"LSB_HOSTS", "a a a"}}}) == "");
}

TEST_CASE("17.3: mpirun's processes are nodes only where each has a host", "[platform]") {
  const std::string refusal = shape_of(mpirun("4", "2"));
  CHECK(
      contains(refusal,
               "mpirun starts ddprun 4 times (OMPI_COMM_WORLD_SIZE=4, "
               "OMPI_COMM_WORLD_LOCAL_SIZE=2 of them on this host), and each would be a job of its "
               "own: use mpirun --map-by ppr:1:node"));
  CHECK(shape_of(mpirun("4", "2"), {"--standalone"}) == "");
  CHECK(shape_of(mpirun("4", "2"), {"--nnodes=4", "--node-rank=1", "--master-addr=a"}) ==
        "nodes 4 rank 1 at a");
  CHECK(shape_of(mpirun("4", "2"), {"--nnodes=4", "--rdzv-backend=c10d", "--rdzv-endpoint=a"}) ==
        "nodes 4");

  CHECK(contains(shape_of(mpirun("2", "1")),
                 "does not say where its process 0 is: give --master-addr"));
  CHECK(shape_of(mpirun("2", "1"), {"--master-addr", "a"}) == "nodes 2 rank 1 at a");
  CHECK(contains(shape_of(mpirun("2", "1"), {"--nnodes", "3", "--master-addr", "a"}),
                 "--nnodes=3, but Open MPI has 2 nodes (OMPI_COMM_WORLD_SIZE)"));
}

TEST_CASE("17.3: other launchers of processes are understood as mpirun is", "[platform]") {
  const struct {
    Texts several_on_a_host, one_each;
    std::string words;
  } rows[] = {
      {{{"MV2_COMM_WORLD_RANK", "1"},
        {"MV2_COMM_WORLD_SIZE", "4"},
        {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}},
       {{"MV2_COMM_WORLD_RANK", "1"},
        {"MV2_COMM_WORLD_SIZE", "4"},
        {"MV2_COMM_WORLD_LOCAL_SIZE", "1"}},
       "mpirun starts ddprun 4 times"},
      {{{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}},
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "1"}},
       "mpiexec starts ddprun 4 times"},
      // Nobody says where the others are.
      {{{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}},
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"PMI_LOCAL_SIZE", "1"}},
       "mpiexec starts ddprun 4 times"},
      {{{"JSM_NAMESPACE_RANK", "1"},
        {"JSM_NAMESPACE_SIZE", "4"},
        {"JSM_NAMESPACE_LOCAL_SIZE", "2"}},
       {{"JSM_NAMESPACE_RANK", "1"},
        {"JSM_NAMESPACE_SIZE", "4"},
        {"JSM_NAMESPACE_LOCAL_SIZE", "1"}},
       "jsrun starts ddprun 4 times"},
      {{{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_JOB_NNODES", "2"}},
       {{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_JOB_NNODES", "4"}},
       "flux run starts ddprun 4 times"},
  };
  for (const auto& row : rows) {
    INFO(row.words);
    CHECK(contains(shape_of({row.several_on_a_host}), row.words));
    CHECK(shape_of({row.one_each}, {"--master-addr=a"}) == "nodes 4 rank 1 at a");
  }
  const Place flux{{{"FLUX_TASK_RANK", "1"},
                    {"FLUX_JOB_SIZE", "4"},
                    {"FLUX_JOB_NNODES", "4"},
                    {"FLUX_JOB_ID", "1234567"}}};
  CHECK(shape_of(flux, {"--master-addr=a"}) ==
        "nodes 4 rank 1 at a port " + std::to_string(port_of_job(1'234'567, 0)));
  CHECK(contains(shape_of({{{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prterun-1"}}}),
                 "PMIX_RANK=0 does not say of how many: give --nnodes"));
}

TEST_CASE("17.3: jsrun's head is in LSF's rank file, behind the host that called it",
          "[platform]") {
  const Place place = {{{"JSM_NAMESPACE_RANK", "1"},
                        {"JSM_NAMESPACE_SIZE", "2"},
                        {"JSM_NAMESPACE_LOCAL_SIZE", "1"},
                        {"LSB_JOBID", "8"},
                        {"LSB_DJOB_RANKFILE", "/rankfile"}},
                       {{"/rankfile", "login1\nnode07\nnode08\n"}}};
  CHECK(shape_of(place) == "nodes 2 rank 1 at node07 port " + std::to_string(port_of_job(8, 0)));
}

TEST_CASE("17.3: platforms that start one process on each node need no options", "[platform]") {
  CHECK(shape_of({{{"LWS_WORKER_INDEX", "1"},
                   {"LWS_GROUP_SIZE", "2"},
                   {"LWS_LEADER_ADDRESS", "train-0.train.default"}}}) ==
        "nodes 2 rank 1 at train-0.train.default");
  CHECK(shape_of({{{"SKYPILOT_NODE_RANK", "1"},
                   {"SKYPILOT_NUM_NODES", "2"},
                   {"SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2"}}}) == "nodes 2 rank 1 at 10.0.0.1");
  Texts batch = {{"AWS_BATCH_JOB_NODE_INDEX", "1"},
                 {"AWS_BATCH_JOB_NUM_NODES", "2"},
                 {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "10.0.0.7"}};
  CHECK(shape_of({batch}) == "nodes 2 rank 1 at 10.0.0.7");
  batch.erase("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS");
  CHECK(contains(shape_of({batch}), "does not say --master-addr"));
  batch["AWS_BATCH_JOB_NODE_INDEX"] = "0";  // The main node is not told of itself.
  CHECK(shape_of({batch}) == "nodes 2 rank 0 at host-b");
  // A PyTorchJob whose operator sets no PET_MASTER_ADDR.
  CHECK(shape_of({{{"PET_NNODES", "2"},
                   {"PET_NODE_RANK", "1"},
                   {"MASTER_ADDR", "job-master-0"},
                   {"MASTER_PORT", "23456"},
                   {"RANK", "1"},
                   {"WORLD_SIZE", "16"}}}) == "nodes 2 rank 1 at job-master-0 port 23456");
}

TEST_CASE("17.3: the command line wins over a pod's PET_NNODES, as in torchrun", "[platform]") {
  Place pod = {{{"PET_NNODES", "2"},
                {"PET_NODE_RANK", "0"},
                {"MASTER_ADDR", "job-master-0"},
                {"MASTER_PORT", "23456"}}};
  const auto options = [&](const Words& words) {
    Words all = words;
    all.push_back("/bin/true");
    return parse_options(
        all,
        [&](const std::string& name) -> std::optional<std::string> {
          const auto found = pod.variables.find(name);
          return found == pod.variables.end() ? std::nullopt : std::optional(found->second);
        },
        "/opt/bin/ddprun");
  };
  CHECK(shape_of(pod, {"--nnodes=1"}) == "nodes 1 rank 0");
  CHECK(shape_of(pod, {"--nnodes=3"}) == "nodes 3 rank 0 at job-master-0 port 23456");
  CHECK(shape_of(pod, {"--nnodes=2"}) == "nodes 2 rank 0 at job-master-0 port 23456");
  CHECK(options({"--nnodes=1"}).nnodes_max == 1);

  for (const bool trainer_v2 : {false, true}) {
    if (trainer_v2) pod.variables["PET_MASTER_ADDR"] = "job-node-0-0.job";
    pod.variables["PET_NODE_RANK"] = "1";
    const LaunchOptions alone = options({"--standalone"});
    CHECK(alone.nnodes_min == 1);
    CHECK(alone.nnodes_max == 1);
    CHECK(alone.node_rank == 0);
    CHECK(alone.sources.count("nnodes") == 0);
    CHECK(alone.endpoint_host == "127.0.0.1");
    REQUIRE_FALSE(alone.notes.empty());
    CHECK(alone.notes[0] == "PET_NNODES=2 has no effect with --standalone");
    const LaunchOptions typed = options({"--nnodes=1"});
    CHECK(typed.nnodes_max == 1);
    CHECK(typed.node_rank == 0);
    CHECK(typed.endpoint_host == "127.0.0.1");
    pod.variables["PET_NODE_RANK"] = "0";
    CHECK(options({"--nnodes=1"}).nnodes_max == 1);
  }
  // Neither of two variables is nearer.
  pod.variables["PET_STANDALONE"] = "1";
  CHECK_THROWS_AS(options({}), UsageExit);
}

TEST_CASE("17.3: SageMaker tells its hosts in a variable, or in a file", "[platform]") {
  CHECK(shape_of({{{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}}}) ==
        "nodes 2 rank 1 at algo-1");
  const std::string path = "/opt/ml/input/config/resourceconfig.json";
  const std::string hosts = R"({"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]})";
  CHECK(shape_of({{{"TRAINING_JOB_NAME", "t"}}, {{path, hosts}}}) == "nodes 2 rank 1 at algo-1");
  for (const char* broken : {"", "[", "[]", "{}", R"({"hosts": 3})"}) {
    CHECK(shape_of({{{"TRAINING_JOB_NAME", "t"}}, {{path, broken}}}) == "");
  }
  const Place lost = {{{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-3"}}};
  CHECK(contains(shape_of(lost), "is not in SM_HOSTS"));
  const Platform odd = platform_of({{{"SM_HOSTS", "algo-1,algo-2"}}});
  CHECK_FALSE(odd.is_here());
  CHECK(odd.rejected == Words{"SM_HOSTS=algo-1,algo-2: no list of hosts as JSON"});
}

TEST_CASE("17.3: pods of Volcano find their task by their name", "[platform]") {
  const Place pod = {{{"VC_TASK_INDEX", "1"},
                      {"VC_WORKER_HOSTS", "my-job-worker-0.my-job,my-job-worker-1.my-job"},
                      {"VC_WORKER_NUM", "2"}},
                     {},
                     "my-job-worker-1"};
  CHECK(shape_of(pod) == "nodes 2 rank 1 at my-job-worker-0.my-job");
  // The pytorch plugin counts over all tasks.
  CHECK(shape_of({{{"VC_TASK_INDEX", "0"},
                   {"RANK", "1"},
                   {"WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "job-master-0.job"},
                   {"MASTER_PORT", "23456"}}}) == "nodes 2 rank 1 at job-master-0.job port 23456");
  CHECK(contains(shape_of({{{"VC_TASK_INDEX", "1"}}}), "Volcano does not say how many pods"));
}

TEST_CASE("17.3: a pod of an indexed Job knows its number, and pod 0 by its own name",
          "[platform]") {
  Place pod = {
      {{"JOB_COMPLETION_INDEX", "1"}},
      {{"/etc/hosts",
        "127.0.0.1 localhost\n10.1.2.3\ttrain-1.train.default.svc.cluster.local\ttrain-1\n"}},
      "train-1"};
  CHECK(contains(shape_of(pod), "is not told how many there are: set PET_NNODES"));
  pod.variables["PET_NNODES"] = "2";
  CHECK(shape_of(pod) == "nodes 2 rank 1 at train-0.train.default.svc.cluster.local");
  pod.files["/etc/hosts"] = "10.1.2.3\ttrain-1\n";
  CHECK(contains(shape_of(pod), "no subdomain"));
  pod.variables["PET_MASTER_ADDR"] = "head";
  CHECK(shape_of(pod) == "nodes 2 rank 1 at head");
}

TEST_CASE("17.3: pods of an indexed Job that are told to be one node are jobs of their own",
          "[platform]") {
  Place pod = {{{"JOB_COMPLETION_INDEX", "3"}, {"PET_NNODES", "1"}}};
  CHECK(shape_of(pod) == "nodes 1");
  pod.variables["PET_MASTER_ADDR"] = "127.0.0.1";
  CHECK(shape_of(pod) == "nodes 1 at 127.0.0.1");
}

TEST_CASE("17.3: batch systems start a script on one of their hosts", "[platform]") {
  const Place pbs = {{{"PBS_NODEFILE", "/nodes"}, {"PBS_JOBID", "4711.head"}},
                     {{"/nodes", "host-a.site\nhost-a.site\nhost-b.site\n"}}};
  CHECK(contains(shape_of(pbs),
                 "PBS's job has 2 hosts (PBS_NODEFILE=/nodes), and each would be a "
                 "job of its own: --hostfile \"$PBS_NODEFILE\" starts all"));
  CHECK(shape_of(pbs, {"--nnodes=2"}) ==
        "nodes 2 rank 1 at host-a.site port " + std::to_string(port_of_job(4711, 0)));
  const std::string refusal = shape_of(pbs, {"--nnodes=1"});
  CHECK(contains(refusal, "--nnodes=1, but PBS's job has 2 nodes"));
  CHECK(contains(refusal, "--hostfile \"$PBS_NODEFILE\" starts all"));
  CHECK(contains(refusal, "for a job of this node alone give --standalone"));
  CHECK(shape_of(pbs, {"--standalone"}) == "");
  const Place lsf = {{{"LSB_JOBID", "9"}, {"LSB_HOSTS", "host-a host-a host-b"}}};
  CHECK(contains(shape_of(lsf), "--hostfile \"$LSB_DJOB_HOSTFILE\""));
  const Place many = {{{"LSB_JOBID", "9"}, {"LSB_DJOB_HOSTFILE", "/f"}}, {{"/f", "a\nhost-b\n"}}};
  CHECK(shape_of(many, {"--nnodes=2"}) ==
        "nodes 2 rank 1 at a port " + std::to_string(port_of_job(9, 0)));
}

TEST_CASE("17.3: a batch system's list of hosts that cannot be read is no silent job of one node",
          "[platform]") {
  for (const char* const list : {"PBS_NODEFILE", "LSB_DJOB_HOSTFILE"}) {
    const Place place = {{{list, "/elsewhere"}, {"LSB_JOBID", list[0] == 'L' ? "9" : ""}}};
    CAPTURE(list);
    CHECK(contains(shape_of(place), std::string(list) + "=/elsewhere cannot be read"));
    CHECK(platform_of(place).rejected.size() == 1);
    CHECK(shape_of(place, {"--nnodes=1"}) == "nodes 1");  // And no note.
  }
}

TEST_CASE("17.3: the inner platform is the one, and the outer is told as not used", "[platform]") {
  Place place = mpirun("2", "1");
  place.variables.merge(Texts{{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  Platform platform = platform_of(place);
  CHECK(platform.name == "Open MPI");
  CHECK(platform.rejected == Words{"SLURM_STEP_NUM_NODES=1 of Slurm's step: Open MPI is nearer"});
  // Slurm's own PMI.
  place.variables = {{"SLURM_STEP_NUM_NODES", "2"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  platform = platform_of(place);
  CHECK(platform.name == "Slurm's step");
  CHECK(platform.rejected == Words{"PMI_RANK=1 of PMI: Slurm's step is nearer"});
}

TEST_CASE("17.3: what may mean something else is told and not read", "[platform]") {
  const Texts ambiguous = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  CHECK(contains(shape_of({ambiguous}), "RANK=1 and WORLD_SIZE=2 are not read"));
  CHECK(platform_of({ambiguous}).rejected.size() == 1);
  Texts worker = ambiguous;  // Of a launcher that is not the cluster's.
  worker["TORCHELASTIC_RUN_ID"] = "none";
  CHECK(shape_of({worker}) == "");
  // An allocation's shell is one process, but few people want one node of several.
  CHECK(contains(shape_of({{{"SLURM_JOB_NUM_NODES", "4"}}}),
                 "SLURM_JOB_NUM_NODES=4, but this is no step of srun's"));
  CHECK(shape_of({{{"SLURM_JOB_NUM_NODES", "4"}}}, {"--nnodes=1"}) == "nodes 1");
}

TEST_CASE("17.3: ddprun env shows each value, its source, and what was not used", "[platform]") {
  const Place place = {{{"SLURM_JOB_ID", "77"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_STEP_NUM_NODES", "2"},
                        {"SLURM_STEP_NUM_TASKS", "2"},
                        {"SLURM_NODEID", "0"},
                        {"SLURM_STEP_NODELIST", "n[1-2]"},
                        {"PMI_RANK", "0"},
                        {"PMI_SIZE", "2"}}};
  const LaunchOptions options = parse_options(
      {"--node-rank=1", "/bin/true"},
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = place.variables.find(name);
        return found == place.variables.end() ? std::nullopt : std::optional(found->second);
      },
      "/opt/bin/ddprun");
  CHECK(describe_environment(platform_of(place), options, "") ==
        "platform   Slurm's step             SLURM_STEP_NUM_NODES=2\n"
        "nodes      2                        SLURM_STEP_NUM_NODES=2\n"
        "node rank  1                        --node-rank=1\n"
        "address    n1                       SLURM_STEP_NODELIST=n[1-2]\n"
        "port       20616                    Slurm's step 77.0\n"
        "job id     slurm-77.0               Slurm's step 77.0\n"
        "workers    1                        default\n"
        "not used\n"
        "  SLURM_NODEID=0: --node-rank=1 wins\n"
        "  PMI_RANK=0 of PMI: Slurm's step is nearer\n");
  CHECK(describe_environment(platform_of(mpirun("2", "2")), {}, "why not") ==
        "platform   Open MPI                 OMPI_COMM_WORLD_RANK=1\n"
        "nodes      2                        OMPI_COMM_WORLD_SIZE=2\n"
        "node rank  1                        OMPI_COMM_WORLD_RANK=1\n"
        "no job can be started: why not\n");
  CHECK(describe_environment({}, {}, "").rfind("platform   none\nnodes      1 ", 0) == 0);
}

TEST_CASE("ddprun env names the option that decided, not one that was given and did not",
          "[platform]") {
  const auto shown = [](Words words, const Texts& variables) {
    words.push_back("/bin/true");
    const auto environment = ddprun::testing::lookup_in(variables);
    return describe_environment({}, parse_options(words, environment, "/opt/bin/ddprun"), "");
  };
  const Words two = {"--nnodes=2", "--node-rank=0", "--master-addr=10.0.0.5", "--master-port=4000"};
  const std::string off = shown(two, {{"PET_STANDALONE", "0"}, {"PET_RDZV_ENDPOINT", ""}});
  CHECK(contains(off, "10.0.0.5                 --master-addr=10.0.0.5\n"));
  CHECK(contains(off, "4000                     --master-port=4000\n"));
  CHECK(contains(off, "none                     default\n"));

  const std::string on = shown({"--standalone", "--rdzv-id=one", "--master-port=4000"}, {});
  CHECK(contains(on, "127.0.0.1                --standalone\n"));
  CHECK(contains(on, "a free one               --standalone\n"));
  CHECK(contains(on, "one                      --rdzv-id=one\n"));

  const std::string endpoint =
      shown({"--nnodes=2", "--rdzv-endpoint=10.0.0.5:4001", "--master-port=4000"}, {});
  CHECK(contains(endpoint, "4001                     --rdzv-endpoint=10.0.0.5:4001\n"));
  const std::string without_port =
      shown({"--nnodes=2", "--rdzv-endpoint=10.0.0.5", "--master-port=4000"}, {});
  CHECK(contains(without_port, "4000                     --master-port=4000\n"));

  const Texts port = {{"PET_MASTER_PORT", "5555"}};
  const Words etcd = {"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=10.0.0.5"};
  CHECK(contains(shown(etcd, port), "2379                     default\n"));
  const Words etcd_port = {"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=10.0.0.5:2380"};
  CHECK(
      contains(shown(etcd_port, port), "2380                     --rdzv-endpoint=10.0.0.5:2380\n"));
  const std::string padded = shown({"--nnodes=2", "--rdzv-id=YWJj="}, {});
  CHECK(contains(padded, "YWJj=                    --rdzv-id=YWJj=\n"));
}

TEST_CASE("17.3: env is a subcommand with nothing but options behind it, else the program",
          "[platform]") {
  const auto asks = [](const Words& words) { return find_subcommand(words) != nullptr; };
  CHECK(asks({"env"}));
  CHECK(asks({"env", "--nnodes", "2"}));
  CHECK(asks({"env", "--nnodse", "2"}));  // Told as a mistake, where env(1) has no such option.
  CHECK(asks({"env", "--help"}));
  for (const Words& program : {Words{},
                               {"--", "env"},
                               {"./env"},
                               {"env", "FOO=1", "prog"},
                               {"env", "-i", "prog"},
                               {"env", "-u", "HOME", "prog"},
                               {"env", "prog"},
                               {"--standalone", "env"},
                               {"envy"}}) {
    CHECK_FALSE(asks(program));
  }
}
