// Recovery in place over NCCL: real jobs on the CUDA module as it is built, on libraries that need
// no GPU (tests/fake_cuda), whose aborted kernels look like successful ones.
#include <signal.h>

#include <map>
#include <string>
#include <vector>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/process.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;
using namespace std::chrono_literals;

namespace {

Process start_job(const std::string& workers, const std::vector<std::string>& arguments,
                  const std::vector<std::string>& options = {}) {
  const auto command =
      launch({"--standalone", "--nproc-per-node", workers, "--max-restarts", "1"}) + options +
      std::vector<std::string>{binary("surviving_nccl_worker")} + arguments;
  return Process(command, {{"DDPRUN_CUDA_MODULE", DDPRUN_FAKE_CUDA_MODULE}});
}

ProcessResult surviving_job(const std::string& workers, const std::vector<std::string>& arguments) {
  return start_job(workers, arguments).wait(60s);
}

std::string start_of(int attempt, int rank, int world) {
  return "attempt " + std::to_string(attempt) + " rank " + std::to_string(rank) + " of " +
         std::to_string(world) + " is pid ";
}

// The pids of an attempt's ranks, as far as they were said in whole lines.
std::map<int, int> pids(const std::string& output, int attempt, int world) {
  std::map<int, int> found;
  for (int rank = 0; rank < world; ++rank) {
    const std::string start = start_of(attempt, rank, world);
    const auto at = output.find(start);
    if (at != output.npos && output.find('\n', at) != output.npos)
      found[rank] = number_after(output, start);
  }
  return found;
}

// All but rank 1 have kept their processes, and all came to the right end.
void check_survivors(const ProcessResult& job, int world) {
  INFO(job.output);
  CHECK(job.status == 0);
  auto before = pids(job.output, 0, world), after = pids(job.output, 1, world);
  REQUIRE(before.size() == static_cast<std::size_t>(world));
  REQUIRE(after.size() == static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    INFO("rank " << rank);
    CHECK((after[rank] == before[rank]) == (rank != 1));
  }
  CHECK(count_of(job.output, "right after step ") == world);
  CHECK_FALSE(contains(job.output, "is left behind"));
}

}  // namespace

TEST_CASE("16.3: workers over NCCL keep their processes when one is killed, wherever it is",
          "[in_place][cuda]") {
  for (const int world : {2, 4}) {
    for (const std::string where : {"init", "call", "between"}) {
      INFO(world << " workers, killed: " << where);
      check_survivors(surviving_job(std::to_string(world), {"1", where}), world);
    }
  }
}

TEST_CASE("16.3: workers that wait for one to be met keep their processes when it is killed",
          "[in_place][cuda]") {
  for (const int world : {2, 4}) {
    INFO(world << " workers");
    Process job = start_job(std::to_string(world), {"1", "meeting"});
    REQUIRE(
        job.wait_until([&] { return pids(job.output(), 0, world).size() == std::size_t(world); }));
    ::kill(pids(job.output(), 0, world)[1], SIGKILL);
    check_survivors(job.wait(60s), world);
  }
}

TEST_CASE("16.3: of workers over NCCL the one that hangs is lost, and not those that wait for it",
          "[in_place][cuda]") {
  for (const int world : {2, 4}) {
    INFO(world << " workers");
    const auto job = start_job(std::to_string(world), {"1", "hangs"},
                               {"--stall-timeout", patience_seconds(1), "--on-stall", "fail"})
                         .wait(60s);
    check_survivors(job, world);
  }
}

TEST_CASE(
    "16.3: a survivor over NCCL goes on alone and takes a replacement in, each on its own GPU",
    "[in_place][cuda]") {
  const auto alone = surviving_job("1:2", {"2", "call"});
  INFO(alone.output);
  CHECK(alone.status == 0);
  CHECK(count_of(alone.output, "right after step ") == 2);
  const int survivor = pids(alone.output, 0, 2)[0];
  CHECK(pids(alone.output, 1, 1) == std::map<int, int>{{0, survivor}});
  CHECK(pids(alone.output, 2, 2)[0] == survivor);

  // The second survivor's local rank is 1 in between, and its GPU is 2 as ever.
  const auto two = surviving_job("2:3", {"2", "call"});
  INFO(two.output);
  CHECK(two.status == 0);
  CHECK(count_of(two.output, "right after step ") == 3);
  auto first = pids(two.output, 0, 3);
  CHECK(pids(two.output, 1, 2) == std::map<int, int>{{0, first[0]}, {1, first[2]}});
  CHECK(pids(two.output, 2, 3)[2] == first[2]);
}

TEST_CASE("16.3: graphs that are destroyed before the communicator hold up no recovery over NCCL",
          "[in_place][cuda]") {
  for (const int world : {2, 4}) {
    check_survivors(surviving_job(std::to_string(world), {"1", "between", "graph"}), world);
  }
}

TEST_CASE(
    "16.3: a communicator whose graph is destroyed after it is left behind in time, and told of",
    "[in_place][cuda]") {
  const auto job = surviving_job("2", {"1", "between", "late_graph"});
  INFO(job.output);
  CHECK(job.status == 0);
  CHECK(contains(job.output,
                 "rank 0: NCCL's communicator did not end within 4000 ms and is left behind"));
  CHECK(pids(job.output, 1, 2)[0] == pids(job.output, 0, 2)[0]);
  CHECK(count_of(job.output, "right after step ") == 2);
}
