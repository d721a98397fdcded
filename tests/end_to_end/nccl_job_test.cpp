// Whole jobs over the CUDA module as it is built, on libraries that need no GPU (tests/fake_cuda).
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/process.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;
using namespace std::chrono_literals;

namespace {

// `before` is what a shell of each worker does first; nccl_worker takes its GPU's number.
ProcessResult nccl_job(int ranks, const std::string& before = "", const std::string& gpu = "") {
  return run(
      {DDPRUN_BIN_DIR "/ddprun", "--nproc-per-node", std::to_string(ranks), "--max-restarts", "1",
       "--no-python", "sh", "-c", before + " exec " DDPRUN_BIN_DIR "/nccl_worker " + gpu},
      patience(30s), {{"DDPRUN_CUDA_MODULE", DDPRUN_FAKE_CUDA_MODULE}});
}

}  // namespace

TEST_CASE("the CUDA module's collectives are right between 1, 2 and 4 processes",
          "[end_to_end][cuda]") {
  for (const int ranks : {1, 2, 4}) {
    const auto job = nccl_job(ranks);
    INFO(job.output);
    CHECK(job.status == 0);
    const std::string said = "right: nccl 22809: " + std::to_string(ranks) + " rank";
    CHECK(count_of(job.output, said) == ranks);
  }
}

TEST_CASE("a job over NCCL goes on after a worker was killed in a collective",
          "[end_to_end][cuda]") {
  const auto job =
      nccl_job(2, "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || export FAKE_NCCL_KILL=1:ncclAllReduce;");
  INFO(job.output);
  CHECK(job.status == 0);
  CHECK(contains(job.output, "rank 1"));
  CHECK(contains(job.output, "SIGKILL"));
  CHECK(count_of(job.output, "right: nccl") == 2);
}

TEST_CASE("two workers share a GPU where each is a host to NCCL, and else are told what to do",
          "[end_to_end][cuda]") {
  const auto shared = nccl_job(2, "export NCCL_HOSTID=h$RANK;", "0");
  INFO(shared.output);
  CHECK(shared.status == 0);
  CHECK(count_of(shared.output, "right: nccl") == 2);

  const auto refused = nccl_job(2, "", "0");
  INFO(refused.output);
  CHECK(refused.status == 1);
  CHECK(contains(refused.output, "Duplicate GPU detected"));
  CHECK(contains(refused.output, "two ranks use the same GPU"));
}
