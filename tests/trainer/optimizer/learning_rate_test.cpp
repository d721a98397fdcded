// The learning rate of a step.
#include "trainer/optimizer/learning_rate.h"

#include <utility>

#include "tests/testing/catch.h"

using namespace ddprun::trainer;

TEST_CASE("the learning rate is divided by ten every thirty epochs", "[trainer][lr]") {
  const LearningRateOptions options{.base = 0.1};
  CHECK(learning_rate_at(options, {0, 0, 1000}) == Approx(0.1));
  CHECK(learning_rate_at(options, {299, 29, 1000}) == Approx(0.1));
  CHECK(learning_rate_at(options, {300, 30, 1000}) == Approx(0.01));
  CHECK(learning_rate_at(options, {600, 60, 1000}) == Approx(0.001));
}

TEST_CASE("the learning rate drops by gamma at each milestone", "[trainer][lr]") {
  const LearningRateOptions options{.base = 1,
                                    .schedule = LearningRateSchedule::MultiStep,
                                    .milestones = {30, 60, 80},
                                    .gamma = 0.2};
  CHECK(learning_rate_at(options, {0, 29, 100}) == Approx(1));
  CHECK(learning_rate_at(options, {0, 30, 100}) == Approx(0.2));
  CHECK(learning_rate_at(options, {0, 79, 100}) == Approx(0.04));
  CHECK(learning_rate_at(options, {0, 80, 100}) == Approx(0.008));
  CHECK(learning_rate_at({.step_epochs = 2, .gamma = 0.5}, {0, 5, 100}) == Approx(0.025));
}

TEST_CASE("a warm-up is a part of what the schedule says", "[trainer][lr]") {
  const LearningRateOptions options{.base = 1, .milestones = {1}, .gamma = 0.5, .warmup_steps = 8};
  CHECK(learning_rate_at(options, {3, 0, 100}) == Approx(0.5));
  CHECK(learning_rate_at(options, {5, 1, 100}) == Approx(0.375));
  CHECK(learning_rate_at(options, {8, 1, 100}) == Approx(0.5));
}

TEST_CASE("with other steps per epoch the rate goes on from the same place in the data",
          "[trainer][lr]") {
  LearningRateOptions options{
      .base = 1, .schedule = LearningRateSchedule::Cosine, .warmup_epochs = 3};
  // 10 epochs of 4 steps with four workers; of 16 with the one that is left after 5 of them.
  const LearningRateOptions four = resolve_learning_rate(options, 4, 1, 4);
  const LearningRateOptions one = resolve_learning_rate(options, 16, 1, 1);
  const std::int64_t ahead = 80 - 20;
  CHECK(learning_rate_at(one, {20, 5, 100, ahead}) == Approx(learning_rate_at(four, {20, 5, 40})));
  CHECK(learning_rate_at(one, {36, 6, 100, ahead}) == Approx(learning_rate_at(four, {24, 6, 40})));
  // A warm-up in steps counts those that were done.
  options.warmup_epochs = 0;
  options.warmup_steps = 40;
  const LearningRateOptions in_steps = resolve_learning_rate(options, 16, 1, 1);
  CHECK(learning_rate_at(in_steps, {20, 5, 1'000'000, ahead}) == Approx(21.0 / 40));
}

TEST_CASE("where --steps ends the run a warm-up in epochs goes on from its place in the data, too",
          "[trainer][lr]") {
  // 4 steps an epoch, and 16 or 2 from the sixth step on: after one epoch and a half.
  const LearningRateOptions epochs{.base = 1, .warmup_epochs = 1};
  const auto rate = [&](LearningRateOptions options, std::int64_t per_epoch, std::int64_t step,
                        std::int64_t ahead) {
    options = resolve_learning_rate(options, per_epoch, 1, 1);
    return learning_rate_at(options, {step, 1, 20, ahead, /*by_steps=*/true});
  };
  CHECK(rate(epochs, 16, 6, 24 - 6) == 1);
  CHECK(rate(epochs, 2, 6, 3 - 6) == 1);
  CHECK(rate(epochs, 16, 2, 8 - 2) == Approx(9.0 / 16));  // Within the warm-up, after its half.

  LearningRateOptions cosine = epochs;
  cosine.schedule = LearningRateSchedule::Cosine;
  const double before = rate(cosine, 4, 6, 0);
  for (const auto& [per_epoch, ahead] : {std::pair(16, 24 - 6), std::pair(2, 3 - 6)}) {
    INFO(per_epoch << " steps an epoch");
    CHECK(rate(cosine, per_epoch, 6, ahead) == Approx(before));
    for (std::int64_t step = 6; step < 20; ++step) {
      CHECK(rate(cosine, per_epoch, step + 1, ahead) < rate(cosine, per_epoch, step, ahead));
    }
    CHECK(rate(cosine, per_epoch, 20, ahead) == Approx(0).margin(1e-12));
  }
  // Of a warm-up that goes on with fewer images a step the cosine begins at its end.
  CHECK(rate(cosine, 16, 9, 8 - 2) == 1);
  CHECK(rate(cosine, 16, 10, 8 - 2) == 1);
  CHECK(rate(cosine, 16, 11, 8 - 2) < 1);
}

TEST_CASE("where epochs end the run a cosine after a warm-up in steps goes on from its place, too",
          "[trainer][lr]") {
  const LearningRateOptions options{
      .base = 1, .schedule = LearningRateSchedule::Cosine, .warmup_steps = 40};
  const auto rate = [&](std::int64_t step, std::int64_t total, std::int64_t ahead) {
    return learning_rate_at(options, {step, 0, total, ahead});
  };
  // 400 steps; with a quarter of the workers each is four, with four times as many a quarter.
  for (const std::int64_t done : {60, 160, 320}) {
    INFO(done << " steps done");
    const double before = rate(done, 400, 0);
    for (const auto& [place, whole] :
         {std::pair(4 * done, std::int64_t{1600}), std::pair(done / 4, std::int64_t{100})}) {
      const std::int64_t ahead = place - done, total = whole - ahead;
      CHECK(rate(done, total, ahead) == Approx(before));
      for (std::int64_t step = done; step < total; ++step) {
        CHECK(rate(step + 1, total, ahead) < rate(step, total, ahead));
      }
      CHECK(rate(total, total, ahead) == Approx(0).margin(1e-12));
    }
  }
  // Changed within the warm-up, which counts its own steps: no fall before its end.
  CHECK(rate(20, 340, 60) == Approx(21.0 / 40));
  CHECK(rate(40, 340, 60) == 1);
  CHECK(rate(41, 340, 60) < 1);
}

TEST_CASE("where steps end the run and count its warm-up, its place in the data changes no rate",
          "[trainer][lr]") {
  const LearningRateOptions options{
      .base = 1, .schedule = LearningRateSchedule::Cosine, .warmup_steps = 4};
  for (std::int64_t step = 0; step <= 20; ++step) {
    const double rate = learning_rate_at(options, {step, 0, 20, 0, /*by_steps=*/true});
    CHECK(learning_rate_at(options, {step, 0, 20, /*ahead=*/30, /*by_steps=*/true}) == rate);
  }
}

TEST_CASE("a rate is scaled from what it was chosen for to this run", "[trainer][lr]") {
  LearningRateOptions options{.base = 0.1, .warmup_epochs = 5};
  const LearningRateOptions plain = resolve_learning_rate(options, 40, 512, 4);
  CHECK(plain.base == 0.1);
  CHECK(plain.warmup_steps == 200);
  CHECK(plain.warmup_epochs == 0);
  options.reference = LearningRateReference{};
  CHECK(resolve_learning_rate(options, 40, 512, 4).base == Approx(0.4));
  options.reference = LearningRateReference{1};
  CHECK(resolve_learning_rate(options, 40, 512, 4).base == Approx(51.2));
  options.reference = LearningRateReference{256};
  const LearningRateOptions scaled = resolve_learning_rate(options, 40, 512, 4);
  CHECK(scaled.base == Approx(0.2));
  CHECK(resolve_learning_rate(scaled, 40, 512, 4).base == scaled.base);  // Once only.
}

TEST_CASE("a warm-up rises to the base rate and the cosine falls to zero", "[trainer][lr]") {
  const LearningRateOptions options{
      .base = 0.4, .schedule = LearningRateSchedule::Cosine, .warmup_steps = 4};
  CHECK(learning_rate_at(options, {0, 0, 104}) == Approx(0.1));
  CHECK(learning_rate_at(options, {3, 0, 104}) == Approx(0.4));
  CHECK(learning_rate_at(options, {4, 0, 104}) == Approx(0.4));
  CHECK(learning_rate_at(options, {54, 0, 104}) == Approx(0.2));
  CHECK(learning_rate_at(options, {103, 0, 104}) < 0.001);
  CHECK(learning_rate_at(options, {200, 1, 104}) == Approx(0.0).margin(1e-12));
  // Without a warm-up, and where the run ends within it.
  LearningRateOptions other = options;
  other.warmup_steps = 0;
  CHECK(learning_rate_at(other, {0, 0, 104}) == Approx(0.4));
  other.warmup_steps = 200;
  CHECK(learning_rate_at(other, {99, 0, 104}) == Approx(0.2));
}
