// train with LibTorch's own CUDA libraries, on a GPU of the tests (tests/fake_cuda): memory,
// streams, events, graphs and NCCL are there, and kernels take their place and compute nothing.
// What the host does is as on a GPU; what it trains is not looked at.
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/process.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"
#include "tests/testing/words.h"

#ifdef DDPRUN_FAKE_GPU
#define DDPRUN_SKIP_WITHOUT_CUDA() static_cast<void>(0)
#else
#define DDPRUN_FAKE_GPU ""
#define DDPRUN_SKIP_WITHOUT_CUDA() \
  DDPRUN_SKIP("this build has no CUDA module, or a LibTorch without CUDA, or it is a sanitizer's")
#endif

using namespace ddprun::testing;
using namespace std::chrono_literals;

namespace {

constexpr auto limit = 60s;

std::map<std::string, std::string> with_gpus(int count,
                                             std::map<std::string, std::string> more = {}) {
  more["LD_PRELOAD"] = DDPRUN_FAKE_GPU;
  more["FAKE_CUDA_DEVICES"] = std::to_string(count);
  return more;
}

std::vector<std::string> training(const std::string& options) {
  return std::vector<std::string>{binary("train")} +
         words_of(
             "--device cuda --dataset synthetic --synthetic-images 60 --model resnet20 "
             "--batch-size 8 --no-validation --steps 8") +
         words_of(options);
}

std::vector<std::string> job(int workers, const std::string& options, int restarts = 1) {
  return std::vector<std::string>{binary("ddprun"),   "--standalone",
                                  "--nproc-per-node", std::to_string(workers),
                                  "--max-restarts",   std::to_string(restarts)} +
         training(options);
}

// Neither the CUDA of the tests nor LibTorch has anything to say against it.
void check_clean(const ProcessResult& result, const std::string& said) {
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, said));
  CHECK(!contains(result.output, "fake CUDA"));
  CHECK(!contains(result.output, "fake NCCL"));
  CHECK(!contains(result.output, "Warning"));
}

}  // namespace

TEST_CASE("train runs on a GPU of the tests in each of its ways", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  for (const std::string options :
       {"", "--precision fp16", "--precision bf16 --clip-grad-norm 1 --ema 0.9 --accumulate 2",
        "--no-fused-optimizer --no-fused-norm --no-fused-pool --no-working-copies",
        "--resident-data", "--device-normalize", "--gpu-memory", "--shards 4 --precision fp16",
        "--optimizer lars", "--memory-format nchw",
        "--model resnet50 --stem imagenet --image-size 64 --precision fp16"}) {
    INFO(options);
    check_clean(run(training(options), patience(limit), with_gpus(1)), "Done: 8 steps");
  }
  const TemporaryFolder folder;
  check_clean(run(training("--profile-steps 2:4 --profile " + (folder / "trace")), patience(limit),
                  with_gpus(1)),
              "profile of steps up to 4");
}

TEST_CASE("steps are recorded and replayed under CUDA's rules of capture", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  for (const std::string options :
       {"", "--precision fp16 --resident-data", "--device-normalize --accumulate 2",
        "--clip-grad-norm 1 --ema 0.9 --no-fused-norm", "--model convnet --precision bf16"}) {
    INFO(options);
    check_clean(run(training("--cuda-graph " + options), patience(limit), with_gpus(1)),
                "it is recorded as a graph");
    check_clean(run(job(2, "--share-gpu --cuda-graph --verify-sync 2 " + options), patience(limit),
                    with_gpus(1)),
                "All 2 workers hold equal models after step 8");
  }
}

TEST_CASE("two workers on a GPU of the tests end with equal models", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  for (const std::string options :
       {"", "--sync-bn", "--grad-dtype bf16 --precision fp16", "--no-overlap",
        "--power-sgd 2 --power-sgd-start 2", "--shards 4", "--cuda-graph --sync-bn"}) {
    INFO(options);
    check_clean(
        run(job(2, "--share-gpu --verify-sync 2 " + options), patience(limit), with_gpus(1)),
        "All 2 workers hold equal models after step 8");
  }
}

TEST_CASE("a worker trains on two GPUs, and so do two workers", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  for (const std::string options :
       {"--data-parallel 2", "--data-parallel 2 --sync-bn", "--data-parallel 2 --gpu-ids 3,1"}) {
    INFO(options);
    check_clean(run(training(options), patience(limit), with_gpus(4)), "Done: 8 steps");
  }
  for (const std::string options : {"", "--data-parallel 2 --sync-bn", "--cuda-graph"}) {
    INFO(options);
    check_clean(run(job(2, options), patience(limit), with_gpus(4)), "Done: 8 steps");
  }
}

TEST_CASE("two workers are each on its own GPU alone", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  const TemporaryFolder folder;
  const auto gpus = with_gpus(2, {{"FAKE_CUDA_TELL", "1"}});
  const auto check = [&](const std::vector<std::string>& command, const std::string& said) {
    const auto result = run(command, patience(limit), gpus);
    check_clean(result, said);
    CHECK(contains(result.output, "rank 0 had contexts on GPUs 0x1\n"));
    CHECK(contains(result.output, "rank 1 had contexts on GPUs 0x2\n"));
  };
  for (const std::string options : {"", "--cuda-graph --device-normalize", "--sync-bn",
                                    "--precision fp16 --gpu-memory --checkpoint-every 4 "}) {
    INFO(options);
    check(job(2, options + " --checkpoint-dir " + (folder / std::to_string(options.size()))),
          "Done: 8 steps");
  }
  for (const std::string part : {"plain", "own_stream", "sync_bn", "narrow", "power_sgd", "zero"}) {
    INFO(part);
    check({binary("ddprun"), "--standalone", "--nproc-per-node", "2", binary("gpu_worker"), part,
           folder / "optimizer"},
          "right: " + part);
  }
}

TEST_CASE("a checkpoint of a GPU is gone on from, also after a signal", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  const TemporaryFolder folder;
  const std::string saved = "--checkpoint-every 4 --precision bf16 --ema 0.9 --checkpoint-dir ";
  for (const std::string way : {"--device-normalize", "--cuda-graph"}) {
    const std::string options = way + " " + saved + (folder / way.substr(2));
    INFO(options);
    check_clean(run(training(options), patience(limit), with_gpus(1)), "Done: 8 steps");
    check_clean(run(training(options + " --steps 12"), patience(limit), with_gpus(1)),
                "resumed from");

    Process stopped(training(options + " --print-freq 1 --steps 1000000"), with_gpus(1));
    CHECK(stopped.wait_for_output("Epoch: [4]", patience(limit)));
    stopped.send_signal(SIGTERM);
    const ProcessResult result = stopped.wait(patience(limit));
    INFO(result.output.substr(0, 5000));
    CHECK(result.status == 75);
    CHECK(contains(result.output, "SIGTERM: saved step"));
  }
}

TEST_CASE("a worker on a GPU that is killed is replaced", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  for (const std::string options : {"--cuda-graph", "--device-normalize", "--shards 2"}) {
    const TemporaryFolder folder;
    INFO(options);
    Process jobs(job(2, "--share-gpu --print-freq 1 --steps 200 --checkpoint-every 5 " + options +
                            " --checkpoint-dir " + (folder / "run")),
                 with_gpus(1));
    REQUIRE(jobs.wait_for_output("Epoch: [2]", patience(limit)));
    const auto workers = descendants_running(jobs.pid(), "train");
    REQUIRE(workers.size() == 2);
    ::kill(workers.back(), SIGKILL);
    const ProcessResult result = jobs.wait(patience(limit));
    INFO(result.output);
    CHECK(result.status == 0);
    CHECK(contains(result.output, "attempt 1: 2 workers"));
    const bool in_place = contains(result.output, "in the process of the attempt before: rank 0");
    CHECK(in_place == (options == "--shards 2"));
    CHECK(contains(result.output, "Done: 200 steps"));
    CHECK(!contains(result.output, "fake CUDA"));
  }
}

TEST_CASE("a batch that a GPU has no room for is told with one that it has", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  const auto gpu = with_gpus(1, {{"FAKE_CUDA_MEMORY", std::to_string(4L << 30)}});
  const std::string network = "--model resnet50 --image-size 224 --synthetic-images 64 --steps 2 ";
  const auto large = run(training(network + "--batch-size 64"), patience(limit), gpu);
  INFO(large.output);
  CHECK(large.status == 1);
  REQUIRE(contains(large.output, "images should fit: give --batch-size "));
  const int fits = number_after(large.output, "give --batch-size ");
  check_clean(run(training(network + "--batch-size " + std::to_string(fits)), patience(limit), gpu),
              "Done: 2 steps");
}

// A recording keeps the gaps between its tensors, and an epoch's last batch lies beside it.
TEST_CASE("a batch that is named with --cuda-graph fits with it", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  const std::string network =
      "--cuda-graph --model resnet18 --image-size 112 --synthetic-images 600 --steps 12 ";
  for (const auto& [mib, batch] : {std::pair(900L, 256), {1500L, 256}, {1900L, 256}}) {
    const auto gpu = with_gpus(1, {{"FAKE_CUDA_MEMORY", std::to_string(mib << 20)}});
    const auto large =
        run(training(network + "--batch-size " + std::to_string(batch)), patience(limit), gpu);
    INFO(large.output);
    CHECK(large.status == 1);
    REQUIRE(contains(large.output, "images should fit: give --batch-size "));
    const int fits = number_after(large.output, "give --batch-size ");
    check_clean(
        run(training(network + "--batch-size " + std::to_string(fits)), patience(limit), gpu),
        "Done: 12 steps");
  }
}

// LibTorch says of some that cuDNN found no engine.
TEST_CASE("whatever a full GPU has refused is told as such", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  for (const long mib : {44, 50, 56, 60, 64, 70}) {
    const auto result = run(training("--image-size 64"), patience(limit),
                            with_gpus(1, {{"FAKE_CUDA_MEMORY", std::to_string(mib << 20)}}));
    INFO(result.output);
    CHECK(result.status == 1);
    CHECK(contains(result.output, "the GPU's memory"));
  }
}

TEST_CASE("a GPU that fails ends train with CUDA's words", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  for (const std::string options : {"", "--cuda-graph", "--device-normalize"}) {
    INFO(options);
    const auto result = run(training(options + " --steps 1000000"), patience(limit),
                            with_gpus(1, {{"FAKE_CUDA_FAULT", "5000"}}));
    INFO(result.output);
    CHECK(result.status == 1);
    CHECK(contains(result.output,
                   "train: this worker's GPU has failed in work that it was given "
                   "earlier: an illegal memory access was encountered. "));
  }
}

// Nothing of CUDA's ends such a wait. All at once, since each takes the time of its limit.
TEST_CASE("a GPU that hangs ends train with words, also where all do", "[end_to_end][cuda]") {
  DDPRUN_SKIP_WITHOUT_CUDA();
  const auto gpus = with_gpus(2, {{"FAKE_CUDA_STALL", "5000"}});
  std::vector<std::unique_ptr<Process>> all;
  for (const std::string options : {"", "--cuda-graph", "--shards 4"}) {
    const std::string given = options + " --collective-timeout 1 --steps 1000000";
    all.push_back(std::make_unique<Process>(training(given), gpus));
    all.push_back(std::make_unique<Process>(job(2, given, /*restarts=*/0), gpus));
  }
  for (const auto& process : all) {
    const ProcessResult result = process->wait(patience(limit));
    INFO(result.output);
    CHECK(result.status == 1);
    CHECK(contains(result.output, "does not answer: what it was given is not done after 11 s"));
    CHECK(!contains(result.output, "fake CUDA"));
  }
}
