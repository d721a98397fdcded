// The plan that --dry-run prints: the same values as a launch would use, each with its source.
#include "launcher/dry_run.h"

#include <sstream>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"
#include "tests/testing/variables.h"

using namespace ddprun::launcher;
using ddprun::testing::contains;
using ddprun::testing::lookup_in;

namespace {

std::string plan(const std::vector<std::string>& words,
                 const std::map<std::string, std::string>& variables = {}) {
  const EnvironmentLookup environment = lookup_in(variables);
  const LaunchOptions options = parse_options(words, environment, "/opt/bin/ddprun");
  EndpointFacts endpoint{.addresses = {"10.0.0.1"},
                         .own_host_name = "node0",
                         .is_local = [](const std::string& address) {
                           return address == "10.0.0.1" || address == "127.0.0.1";
                         }};
  return describe_launch(options, {.plan = plan_endpoint(options, endpoint),
                                   .resolve_error = "",
                                   .host_name = "node0",
                                   .environment = environment,
                                   .cpus = 8,
                                   .places = std::vector<WorkerCpus>(2, {.cores = 4}),
                                   .gpus = 1});
}

// The line that begins with `start`, without the blanks before it.
std::string line(const std::string& text, const std::string& start) {
  std::istringstream lines(text);
  for (std::string found; std::getline(lines, found);) {
    found.erase(0, found.find_first_not_of(' '));
    if (found.rfind(start, 0) == 0) return found;
  }
  return "";
}

}  // namespace

TEST_CASE("a plan says who hosts, where, and which ranks this node gets", "[launcher][dry_run]") {
  const std::string text = plan(
      {"--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.9", "--nproc-per-node=4", "/bin/true"},
      {{"PET_MASTER_PORT", "5555"}, {"PET_MAX_RESTARTS", "3"}});
  INFO(text);
  CHECK(contains(line(text, "endpoint"), "10.0.0.9, port 5555"));
  CHECK(contains(line(text, "endpoint"),
                 "address: --master-addr=10.0.0.9; port: PET_MASTER_PORT=5555"));
  CHECK(contains(text, "another node hosts"));
  CHECK(contains(line(text, "ranks"), "4 to 7 of 8"));
  CHECK(contains(line(text, "restarts"), "3   (PET_MAX_RESTARTS=3)"));
  CHECK(contains(line(text, "local rank 2:"), " RANK=6"));
  CHECK(contains(line(text, "WORLD_SIZE=8"), "nodes x workers"));

  const std::string host = plan({"--nnodes=2", "--master-addr=10.0.0.1", "/bin/true"});
  INFO(host);
  CHECK(contains(host, "this node hosts the coordinator and the store, on 10.0.0.1"));
}

TEST_CASE("a plan names where the secret comes from, if one is needed", "[launcher][dry_run]") {
  const std::vector<std::string> words = {"--nnodes=2", "--master-addr=10.0.0.1", "/bin/true"};
  const auto secret = [&](const std::map<std::string, std::string>& variables) {
    return line(plan(words, variables), "secret");
  };
  CHECK(contains(secret({{"HOME", "/home/ada"}}),
                 "/home/ada/.config/ddprun/secret, made if it is not there   (default)"));
  CHECK(contains(secret({{"DDPRUN_SECRET_FILE", "/run/key"}}),
                 "/run/key   (DDPRUN_SECRET_FILE=/run/key)"));
  CHECK(contains(secret({{"DDPRUN_SECRET_FILE", "/run/key"}, {"PET_SECRET_FILE", "/pet/key"}}),
                 "/pet/key   (PET_SECRET_FILE=/pet/key)"));
  CHECK(contains(secret({{"DDPRUN_AUTH", "none"}}), "whoever reaches the endpoint may join"));
  CHECK(contains(line(plan({"--nnodes=2", "/bin/true"}), "secret"), "none is needed"));
  CHECK(line(plan({"/bin/true"}), "secret").empty());
}

TEST_CASE("a plan does not make up what only the start decides", "[launcher][dry_run]") {
  const std::string elastic =
      plan({"--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:1234",
            "--nproc-per-node=2", "/bin/true"});
  INFO(elastic);
  CHECK(contains(line(elastic, "nodes"), "1 to 4 nodes"));
  for (const char* name : {"RANK=...", "WORLD_SIZE=...", "GROUP_RANK=..."}) {
    CHECK(line(elastic, name) != "");
  }
  CHECK(line(elastic, "LOCAL_WORLD_SIZE=2") != "");

  CHECK(line(plan({"/bin/true"}), "MASTER_PORT=...") != "");
  const std::string met =
      plan({"--nnodes=1:4", "--rdzv-backend=etcd", "--rdzv-endpoint=10.0.0.1", "/bin/true"});
  CHECK(contains(line(met, "endpoint"), "found in etcd at http://10.0.0.1:2379"));
  CHECK(line(met, "MASTER_PORT=...") != "");
  CHECK(line(met, "MASTER_ADDR=...") != "");
}

TEST_CASE("a plan says whose store the workers have", "[launcher][dry_run]") {
  const auto store = [](std::vector<std::string> words) {
    words.push_back("/bin/true");
    const std::string text = plan(words, {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}});
    return line(text, "TORCHELASTIC_USE_AGENT_STORE") + "\n" + line(text, "MASTER_ADDR") + "\n" +
           line(text, "MASTER_PORT");
  };
  const std::string own = store({"--standalone", "--local-addr=10.0.0.1"});
  INFO(own);
  CHECK(contains(own, "TORCHELASTIC_USE_AGENT_STORE=False"));
  CHECK(contains(own, "rank 0 of the workers opens the store"));
  CHECK(contains(own, "MASTER_ADDR=10.0.0.1"));
  CHECK(contains(own, "this node: --local-addr=10.0.0.1"));
  CHECK(contains(own, "MASTER_PORT=..."));

  const std::vector<std::string> elastic = {"--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:7"};
  const std::string several = store({elastic[0], elastic[1], "--nnodes=2:4"});
  INFO(several);
  CHECK(contains(several, "USE_AGENT_STORE=True"));
  CHECK(contains(several, "MASTER_PORT=7 "));
  // One node is a round, too.
  CHECK(contains(store({elastic[0], elastic[1], "--nnodes=1:4"}), "USE_AGENT_STORE=..."));
}

TEST_CASE("a plan blames no option that is off", "[launcher][dry_run]") {
  const std::string text = plan({"--nnodes=2", "--master-addr=10.0.0.1", "/bin/true"},
                                {{"PET_STANDALONE", "0"}, {"PET_MASTER_PORT", "5555"}});
  INFO(text);
  CHECK_FALSE(contains(text, "PET_STANDALONE"));
  CHECK(contains(line(text, "MASTER_PORT=5555"), " PET_MASTER_PORT=5555"));
  CHECK(contains(line(text, "TORCHELASTIC_RUN_ID"), " default"));
}

TEST_CASE("a plan says of an outer launcher's terminal that it is not for these workers",
          "[launcher][dry_run]") {
  const std::string text = plan({"/bin/true"}, {{"DDPRUN_TERMINAL_COLUMNS", "80"}});
  CHECK(contains(line(text, "DDPRUN_TERMINAL_COLUMNS=0"), "an outer launcher's is not for these"));
}

TEST_CASE("a plan has what workers are given for NCCL's own word of a stall",
          "[launcher][dry_run]") {
  CHECK(contains(line(plan({"/bin/true"}), "NCCL_RAS_ADDR=..."), "a free port"));
  CHECK(line(plan({"--stall-timeout=off", "/bin/true"}), "NCCL_RAS_ADDR").empty());
  CHECK(line(plan({"/bin/true"}, {{"NCCL_RAS_ADDR", "a:1"}}), "NCCL_RAS_ADDR").empty());
  CHECK(line(plan({"/bin/true"}, {{"NCCL_RAS_ENABLE", "0"}}), "NCCL_RAS_ADDR").empty());
}

TEST_CASE("every variable of a plan has a source", "[launcher][dry_run]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string logs = "--log-dir=" + folder.path();
  const std::string text =
      plan({"--nproc-per-node=2", "--virtual-local-rank", logs, "--omp-threads=auto",
            "--max-restarts=1", "/bin/echo", "${local_rank}"},
           {{"CUDA_VISIBLE_DEVICES", "3,5"}, {"DDPRUN_SPARE_FD", "4"}});
  INFO(text);
  std::istringstream lines(text.substr(text.find("Environment")));
  std::string found;
  std::getline(lines, found);
  int variables = 0;
  while (std::getline(lines, found) && found.rfind("  local rank", 0) != 0) {
    INFO(found);
    ++variables;
    const std::size_t blank = found.find(' ', 2);
    REQUIRE(blank != found.npos);
    CHECK(found.find_first_not_of(' ', blank) != found.npos);
  }
  CHECK(variables >= 26);
  CHECK(contains(line(text, "OMP_NUM_THREADS=4"), "--omp-threads=auto"));
  CHECK(contains(text, "CUDA_VISIBLE_DEVICES=5"));
  CHECK(contains(line(text, "local rank 1:"), "/bin/echo 1"));
}

TEST_CASE("17.2: a plan says where metrics and the page will be", "[launcher][dry_run]") {
  const std::string text = plan({"--metrics-port=9400", "--status-page=[::1]:0",
                                 "--metrics-file=/tmp/job.prom", "/bin/true"});
  CHECK(contains(text, "http://127.0.0.1:9400/metrics   (--metrics-port=9400)"));
  CHECK(contains(text, "http://[::1]:a free port/   (--status-page=[::1]:0)"));
  CHECK(contains(text, "/tmp/job.prom   (--metrics-file=/tmp/job.prom)"));
  CHECK_FALSE(contains(plan({"/bin/true"}), "/metrics"));
}

TEST_CASE("a plan tells how a node is checked, and for how long", "[launcher][dry_run]") {
  CHECK(line(plan({"/bin/true"}), "node check").empty());
  CHECK(contains(line(plan({"--node-check=ddprun doctor --brief", "/bin/true"}), "node check"),
                 "ddprun doctor --brief, 30 s at most   (--node-check="));
  CHECK(contains(
      line(plan({"--node-check=true", "--node-check-timeout=2.5", "/bin/true"}), "node check"),
      "true, 2.5 s at most"));
}

TEST_CASE("a plan names the local ranks that have spares", "[launcher][dry_run][spares]") {
  const auto spares = [](const std::string& count) {
    return line(plan({"--nproc-per-node=2", "--max-restarts=1", "--spares=" + count, "/bin/true"}),
                "spares");
  };
  CHECK(spares("0").empty());
  CHECK(contains(spares("1"), "1 process for local rank 0   (--spares=1)"));
  const std::string text = plan({"--restart-memory=1M", "/bin/true"});
  CHECK(contains(line(text, "memory"), "1048576 bytes"));
  CHECK(contains(line(text, "DDPRUN_RESTART_MEMORY_FD=5"), "descriptor of --restart-memory"));
  CHECK(contains(spares("2"), "2 processes for local ranks 0 to 1"));
  const auto limit = [](const std::string& seconds) {
    return line(plan({"--nproc-per-node=1:2", "--max-restarts=1", "--spare-timeout=" + seconds,
                      "/bin/true"}),
                "spare due");
  };
  CHECK(contains(limit("2"), " to be ready   (--spare-timeout=2)"));
  CHECK(contains(limit("0"), "none"));
}

TEST_CASE("17.2: a plan says what becomes of workers that stand still", "[launcher][dry_run]") {
  CHECK(contains(line(plan({"/bin/true"}), "stalls"),
                 "who is behind is killed where the others go on in place   (default)"));
  CHECK(
      contains(line(plan({"--on-stall=report", "/bin/true"}), "stalls"), ": stacks are told   ("));
  CHECK(contains(line(plan({"--stall-timeout=90", "--on-stall=fail", "/bin/true"}), "stalls"),
                 "after 90 s without progress: stacks are told, and who is behind is killed   "
                 "(--stall-timeout=90)"));
  CHECK(contains(line(plan({"--stall-timeout=off", "/bin/true"}), "stalls"), "are not looked for"));
}
