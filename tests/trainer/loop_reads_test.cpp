// How often the loop asks a tensor for its value. On a GPU each time the host waits for all that it
// has queued, so a step must not; here on the CPU, where the calls are the same ones.
#include <ATen/record_function.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"
#include "trainer/device/device.h"
#include "trainer/run_train.h"
#include "trainer/training_job.h"

using namespace ddprun::trainer;

namespace {

// Of the phase that the loop is in, after its first step, of which a line tells.
struct Reads {
  std::string phase;
  bool counts = false;
  std::map<std::string, int> by_phase;
};
Reads& reads() {
  static Reads all;
  return all;
}

std::unique_ptr<at::ObserverContext> note_read(const at::RecordFunction& function) {
  if (std::string(function.name()) == "aten::_local_scalar_dense" && reads().counts) {
    ++reads().by_phase[reads().phase];
  }
  return nullptr;
}

constexpr int steps_counted_to = 6;

// In what is counted: as many steps as steps_counted_to says, less two.
std::map<std::string, int> reads_of(const std::string& more) {
  const ScratchFolder folder;
  std::vector<std::string> words{"train",
                                 "--dataset",
                                 "synthetic",
                                 "--synthetic-images",
                                 "200",
                                 "--synthetic-classes",
                                 "10",
                                 "--image-size",
                                 "16",
                                 "--model",
                                 "convnet",
                                 "--batch-size",
                                 "8",
                                 "--workers",
                                 "0",
                                 "--device",
                                 "cpu",
                                 "--steps",
                                 std::to_string(steps_counted_to),
                                 "--no-validation",
                                 "--print-freq",
                                 "1000",
                                 "--metrics",
                                 (folder / "m").string()};
  std::istringstream text(more);
  for (std::string word; text >> word;) words.push_back(word);
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  ::setenv("TERM", "dumb", 1);  // No row on a terminal, which asks for values to show.
  ::unsetenv("DDPRUN_TERMINAL_COLUMNS");
  reads() = {};
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(note_read).scopes({at::RecordScope::FUNCTION}));
  const int code = run_train(static_cast<int>(argv.size()), argv.data(),
                             [](const TrainingJob& job, const std::string& phase) {
                               reads().phase = phase;
                               reads().counts =
                                   job.state.step > 1 && job.state.step < steps_counted_to;
                             });
  at::removeCallback(handle);
  REQUIRE(code == 0);
  return reads().by_phase;
}

// What a run tells whose second step fails in its backward.
std::string error_after(const std::function<void()>& failure) {
  std::ostringstream said;
  std::streambuf* const before = std::cerr.rdbuf(said.rdbuf());
  const std::vector<const char*> argv{
      "train",   "--dataset",       "synthetic",   "--synthetic-images",
      "64",      "--image-size",    "16",          "--model",
      "convnet", "--batch-size",    "8",           "--workers",
      "0",       "--device",        "cpu",         "--steps",
      "3",       "--no-validation", "--gpu-memory"};
  const int code = run_train(static_cast<int>(argv.size()), argv.data(),
                             [&](const TrainingJob& job, const std::string& phase) {
                               if (job.state.step >= 1 && phase == "backward") failure();
                             });
  std::cerr.rdbuf(before);
  CHECK(code == 1);
  return said.str();
}

}  // namespace

TEST_CASE("a step asks for no value but for the loss, which a GPU is not waited for",
          "[trainer][reads]") {
  // The guard's, whose copies from a GPU it looks at when they have come (loss_guard.h).
  const std::map<std::string, int> of_the_guard{{"report", steps_counted_to - 2}};
  CHECK(reads_of("--precision fp32") == of_the_guard);
  CHECK(reads_of("--precision bf16") == of_the_guard);
  CHECK(reads_of("--precision fp16 --fused-optimizer --resident-data") == of_the_guard);
  CHECK(reads_of("--precision fp16 --fused-optimizer --cuda-graph") == of_the_guard);
  // What it is without: the host must know of an overflow before it updates.
  const std::map<std::string, int> of_both{{"report", steps_counted_to - 2},
                                           {"optimizer", steps_counted_to - 2}};
  CHECK(reads_of("--precision fp16") == of_both);
}

TEST_CASE("a step that runs out of memory ends with what is in it and what to do",
          "[trainer][memory]") {
  const std::string error =
      error_after([] { throw c10::OutOfMemoryError({}, "CUDA out of memory. Tried it."); });
  INFO(error);
  CHECK(contains(error, "a batch of 8 images did not fit into the GPU's memory, beside weights "));
  // The CPU's allocator tells nothing by which a fitting one could be named.
  CHECK(
      contains(error, "give a smaller --batch-size, with --accumulate for as many images a step"));
  CHECK(contains(error, "What was tried: CUDA out of memory. Tried it."));
}

TEST_CASE("a convolution without room for its work space is told as want of memory",
          "[trainer][memory]") {
  const std::string error = error_after([] {
    throw c10::Error(c10::SourceLocation{},
                     "FIND was unable to find an engine to execute this computation");
  });
  INFO(error);
  CHECK(contains(error, "FIND was unable to find an engine to execute this computation: cuDNN"));
  CHECK(contains(error, "the GPU's memory is full (give a smaller --batch-size)"));
}

TEST_CASE("any other error of LibTorch is told in its own words", "[trainer][memory]") {
  const std::string error =
      error_after([] { throw c10::Error(c10::SourceLocation{}, "an odd shape"); });
  INFO(error);
  CHECK(contains(error, "an odd shape"));
  CHECK(!contains(error, "memory"));
}

TEST_CASE("the switches of a GPU's arithmetic reach LibTorch", "[trainer][device]") {
  at::Context& context = at::globalContext();
  const bool usual = context.allowTF32CuDNN();
  set_gpu_arithmetic({});
  CHECK(context.benchmarkCuDNN());
  CHECK(context.allowTF32CuDNN() == usual);
  TrainOptions options;
  options.cudnn_benchmark = false;
  for (const bool on : {true, false}) {
    options.tf32 = on ? Tf32Option::On : Tf32Option::Off;
    set_gpu_arithmetic(options);
    CHECK_FALSE(context.benchmarkCuDNN());
    CHECK(context.allowTF32CuDNN() == on);
    CHECK(context.allowTF32CuBLAS() == on);
  }
}

TEST_CASE("deterministic algorithms are not chosen by their measured speed, unless asked for",
          "[trainer][device]") {
  at::Context& context = at::globalContext();
  TrainOptions options;
  options.cudnn_deterministic = true;
  set_gpu_arithmetic(options);
  CHECK(context.deterministicCuDNN());
  CHECK_FALSE(context.benchmarkCuDNN());
  for (const bool asked : {true, false}) {
    options.cudnn_benchmark = asked;
    set_gpu_arithmetic(options);
    CHECK(context.benchmarkCuDNN() == asked);
  }
  set_gpu_arithmetic({});
  CHECK_FALSE(context.deterministicCuDNN());
  CHECK(context.benchmarkCuDNN());
}
