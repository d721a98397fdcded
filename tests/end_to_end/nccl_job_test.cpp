// Whole jobs over the CUDA module as it is built, on libraries that need no GPU (tests/fake_cuda).
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/process.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;
using namespace std::chrono_literals;

namespace {

ProcessResult nccl_job(int ranks, std::map<std::string, std::string> variables = {}) {
  variables["DDPRUN_CUDA_MODULE"] = DDPRUN_FAKE_CUDA_MODULE;
  return run({DDPRUN_BIN_DIR "/ddprun", "--nproc-per-node", std::to_string(ranks),
              DDPRUN_BIN_DIR "/nccl_worker"},
             patience(30s), variables);
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
