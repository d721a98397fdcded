// Dynamic loss scaling: the states of torch.amp.GradScaler, and what a step must do.
#include "trainer/optimizer/loss_scaler.h"

#include <limits>
#include <sstream>

#include "tests/testing/catch.h"
#include "tests/trainer/scratch.h"

using namespace ddprun::trainer;

namespace {

// The oracle of this test's subject; its output in `output`.
int run_precision_oracle(const std::string& arguments, const std::filesystem::path& output) {
  std::string command = "OMP_NUM_THREADS=1 '";
  command += oracle_python.string();
  command += "' -B '" DDPRUN_SOURCE_DIR "/tests/trainer/optimizer/precision_oracle.py' ";
  return run_command(command + arguments, output);
}

// A fixed sequence of finite (1) and other (0) gradients, with runs long enough to grow.
std::string history() {
  std::string steps;
  std::uint32_t random = 12345;
  for (int i = 0; i < 3000; ++i) {
    random = random * 1664525 + 1013904223;
    steps += (random >> 24) < 20 ? '0' : '1';
  }
  return steps;
}

}  // namespace

TEST_CASE("a gradient that is not finite skips the step and halves the scale",
          "[trainer][precision]") {
  LossScaler scaler;

  const ScaleDecision decision = scaler.decide(false);

  CHECK_FALSE(decision.take_step);
  CHECK(decision.can_go_on);
  CHECK(decision.scale_before == 65536);
  CHECK(decision.scale_after == 32768);
  CHECK(contains(decision.reason, "65536"));
  CHECK(scaler.skipped() == 1);
}

TEST_CASE("the scale doubles after 2000 steps in a row, and not before", "[trainer][precision]") {
  LossScaler scaler;
  for (int i = 0; i < 1999; ++i) CHECK(scaler.decide(true).reason.empty());
  scaler.decide(false);
  for (int i = 0; i < 1999; ++i) CHECK(scaler.decide(true).scale_after == 32768);

  const ScaleDecision decision = scaler.decide(true);

  CHECK(decision.take_step);
  CHECK(decision.scale_after == 65536);
  CHECK_FALSE(decision.reason.empty());
  CHECK(scaler.state().growth_steps == 0);
}

TEST_CASE("the scale never grows out of float32", "[trainer][precision]") {
  LossScaler scaler({.initial_scale = 3e38F, .growth_interval = 1});
  CHECK(scaler.decide(true).scale_after == 3e38F);
  CHECK(scaler.state().growth_steps == 0);
}

TEST_CASE("forty skipped steps in a row are the end, forty with one between are not",
          "[trainer][precision]") {
  LossScaler scaler;
  for (int i = 0; i < 39; ++i) CHECK(scaler.decide(false).can_go_on);
  scaler.decide(true);
  for (int i = 0; i < 39; ++i) CHECK(scaler.decide(false).can_go_on);
  CHECK_FALSE(scaler.decide(false).can_go_on);
}

TEST_CASE("a restored scaler goes on where the saved one was", "[trainer][precision]") {
  LossScaler first({.growth_interval = 5});
  for (const bool finite : {true, false, true, true}) first.decide(finite);
  LossScaler second({.growth_interval = 5});
  REQUIRE(second.restore(first.state()));
  for (int i = 0; i < 20; ++i)
    CHECK(second.decide(true).scale_after == first.decide(true).scale_after);
}

TEST_CASE("states that no scaler can be in are refused", "[trainer][precision]") {
  LossScaler scaler;
  CHECK_FALSE(scaler.restore({0, 0}));
  CHECK_FALSE(scaler.restore({-1, 0}));
  CHECK_FALSE(scaler.restore({std::numeric_limits<float>::quiet_NaN(), 0}));
  CHECK_FALSE(scaler.restore({std::numeric_limits<float>::infinity(), 0}));
  CHECK_FALSE(scaler.restore({1024, 2000}));
  CHECK_FALSE(scaler.restore({1024, -1}));
  CHECK(scaler.scale() == 65536);
  CHECK(scaler.restore({0.5F, 0}));
  CHECK(scaler.restore({1024, 1999}));
}

TEST_CASE("the scale passes through the states of GradScaler", "[trainer][precision][oracle]") {
  if (!has_oracle()) DDPRUN_SKIP("no Python torch in .deps/peer");
  const ScratchFolder folder;
  // initial scale, growth factor, backoff factor, growth interval
  const std::string all[] = {"65536 2 0.5 7", "1000 1.7 0.3 3", "1e38 2 0.5 2"};
  std::string command = "scaler " + history();
  for (const std::string& settings : all) command += " " + settings;
  REQUIRE(run_precision_oracle(command, folder / "states") == 0);
  std::istringstream states(content_of(folder / "states"));
  for (const std::string& settings : all) {
    LossScalerOptions options{.skipped_in_a_row_max = 1000};
    std::istringstream(settings) >> options.initial_scale >> options.growth_factor >>
        options.backoff_factor >> options.growth_interval;
    LossScaler scaler(options);
    int mismatches = 0;
    for (const char step : history()) {
      const ScaleDecision decision = scaler.decide(step == '1');
      float scale = 0;
      std::int64_t growth_steps = -1;
      bool taken = false;
      states >> scale >> growth_steps >> taken;
      mismatches += scale != decision.scale_after || growth_steps != scaler.state().growth_steps ||
                    taken != decision.take_step;
    }
    INFO(settings);
    CHECK(states.good());
    CHECK(mismatches == 0);
  }
}
