// Where ddprun puts its workers on this machine, and what it calls itself.
#include <filesystem>
#include <fstream>

#include "launcher/machine/cpu_topology.h"
#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"

using namespace ddprun::testing;
using namespace ddprun::launcher;

namespace {

// Each worker says which CPUs it may use and how many threads it is to have.
const std::vector<std::string> tells_its_cpus = shell(
    "echo \"worker $LOCAL_RANK: $(sed -n 's/^Cpus_allowed_list:[[:space:]]*/cpus /p' "
    "/proc/self/status) omp ${OMP_NUM_THREADS:-unset}.\"");

std::string line_of(int worker, const WorkerCpus& place, const std::string& threads) {
  const auto cpus = place.cpus.empty() ? allowed_cpus() : place.cpus;
  return "worker " + std::to_string(worker) + ": cpus " + format_cpu_list(cpus) + " omp " +
         threads + ".\n";
}

}  // namespace

TEST_CASE("workers run on the CPUs they are bound to, and ddprun tells which") {
  const CpuTopology machine = read_cpu_topology("", allowed_cpus(), std::nullopt);
  for (const auto& [name, mode] :
       std::map<std::string, NumaBinding>{{"node", NumaBinding::Node},
                                          {"socket", NumaBinding::Socket},
                                          {"exclusive", NumaBinding::Exclusive},
                                          {"core-complex", NumaBinding::CoreComplex}}) {
    const auto places = place_workers(machine, mode, 2);

    const auto result = run(launch({"--standalone", "--nproc-per-node=2", "--omp-threads=auto",
                                    "--numa-binding", name}) +
                                tells_its_cpus,
                            20s, {{"CUDA_VISIBLE_DEVICES", ""}});

    INFO(name << ":\n" << result.output);
    CHECK(result.status == 0);
    for (int worker : {0, 1}) {
      const WorkerCpus& place = places[static_cast<std::size_t>(worker)];
      CHECK(contains(result.output, line_of(worker, place, std::to_string(place.cores))));
    }
    CHECK(contains(result.output, "[ddprun] worker"));
    CHECK(count_of(result.output, "[ddprun] OMP_NUM_THREADS is ") == 1);
  }
}

TEST_CASE("exclusive workers share no CPU where there are two cores") {
  const CpuTopology machine = read_cpu_topology("", allowed_cpus(), std::nullopt);
  const auto places = place_workers(machine, NumaBinding::Exclusive, 2);
  if (contains(places[0].reason, "not exclusive") || places[0].cpus.empty()) {
    DDPRUN_SKIP("this machine tells of no two cores");
  }

  const auto result = run(
      launch({"--standalone", "--nproc-per-node=2"}) + tells_its_cpus, 20s,
      {{"CUDA_VISIBLE_DEVICES", ""}, {"PET_NUMA_BINDING", "exclusive"}, {"OMP_NUM_THREADS", "7"}});

  INFO(result.output);
  CHECK(places[0].cpus != places[1].cpus);
  CHECK(contains(result.output, line_of(0, places[0], "7")));
  CHECK(contains(result.output, line_of(1, places[1], "7")));
}

TEST_CASE("without options workers run where ddprun may, and are told once in two attempts") {
  const auto result =
      run(launch({"--standalone", "--nproc-per-node=2", "--max-restarts=1", "--omp-threads=auto"}) +
              shell("echo \"cpus $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "
                    "/proc/self/status).\"; test $TORCHELASTIC_RESTART_COUNT = 1"),
          20s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(count_of(result.output, "cpus " + format_cpu_list(allowed_cpus()) + ".\n") >= 3);
  CHECK(count_of(result.output, "OMP_NUM_THREADS is ") == 1);
}

TEST_CASE("a store of the workers' own is theirs to open, on a new port in every attempt") {
  const auto result = run(launch({"--standalone", "--max-restarts=1"}) +
                              shell("echo \"store $TORCHELASTIC_USE_AGENT_STORE $MASTER_ADDR port "
                                    "$MASTER_PORT.\"; test $TORCHELASTIC_RESTART_COUNT = 1"),
                          20s, {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}});

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(count_of(result.output, "store False 127.0.0.1 port ") == 2);
  CHECK(number_after(result.output, "port ") > 0);
}

TEST_CASE("workers of several nodes keep ddprun's store, and that is said") {
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto job = launch({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint", endpoint}) +
                   shell("echo \"store $TORCHELASTIC_USE_AGENT_STORE $MASTER_ADDR:$MASTER_PORT.\"");
  const std::map<std::string, std::string> variables = {
      {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}};
  Process one(job, variables), other(job, variables);

  for (const auto& result : {one.wait(30s), other.wait(30s)}) {
    INFO(result.output);
    CHECK(result.status == 0);
    CHECK(contains(result.output, "has no effect with several nodes"));
    CHECK(contains(result.output, "store True " + endpoint));
  }
}

TEST_CASE("called ddprun-launch it passes the local rank as torch.distributed.launch does") {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(binary("ddprun"), folder / "ddprun-launch");
  const auto job = [&](const std::vector<std::string>& options) {
    return run(std::vector<std::string>{folder / "ddprun-launch", "--nproc-per-node=2"} + options +
                   std::vector<std::string>{"/bin/echo", "got", "mine"},
               20s);
  };

  const auto passed = job({}), not_passed = job({"--use-env"});

  INFO(passed.output << not_passed.output);
  CHECK(contains(passed.output, "--local-rank=0 got mine\n"));
  CHECK(contains(passed.output, "--local-rank=1 got mine\n"));
  CHECK(count_of(not_passed.output, "got mine\n") == 2);
  CHECK_FALSE(contains(not_passed.output, "--local-rank"));
}
