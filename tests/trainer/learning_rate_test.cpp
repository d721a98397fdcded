// The learning rate of a step.
#include "trainer/learning_rate.h"

#include "tests/testing/catch.h"

using namespace ddprun::trainer;

TEST_CASE("the learning rate is divided by ten every thirty epochs", "[trainer][lr]") {
  const LearningRateOptions options{.base = 0.1};
  CHECK(learning_rate_at(options, 0, 0, 1000) == Approx(0.1));
  CHECK(learning_rate_at(options, 299, 29, 1000) == Approx(0.1));
  CHECK(learning_rate_at(options, 300, 30, 1000) == Approx(0.01));
  CHECK(learning_rate_at(options, 600, 60, 1000) == Approx(0.001));
}

TEST_CASE("a warm-up rises to the base rate and the cosine falls to zero", "[trainer][lr]") {
  const LearningRateOptions options{
      .base = 0.4, .schedule = LearningRateSchedule::Cosine, .warmup_steps = 4};
  CHECK(learning_rate_at(options, 0, 0, 104) == Approx(0.1));
  CHECK(learning_rate_at(options, 3, 0, 104) == Approx(0.4));
  CHECK(learning_rate_at(options, 4, 0, 104) == Approx(0.4));
  CHECK(learning_rate_at(options, 54, 0, 104) == Approx(0.2));
  CHECK(learning_rate_at(options, 103, 0, 104) < 0.001);
  CHECK(learning_rate_at(options, 200, 1, 104) == Approx(0.0).margin(1e-12));
}
