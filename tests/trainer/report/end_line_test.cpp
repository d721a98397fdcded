// The last line of a run: values in, text out.
#include "trainer/report/end_line.h"

#include "tests/testing/catch.h"
#include "tests/testing/text.h"

namespace ddprun::trainer {
namespace {

using ddprun::testing::contains;

TEST_CASE("17.1: the last line tells steps, accuracy and speed", "[report]") {
  CHECK(end_line({469, 97.45, 53'600, 419, 103.5, 108.2}) ==
        "Done: 469 steps, best top-1 97.45 %; trained on 53600 images in 103.5 s (517.9 images/s), "
        "419 steps per worker of 0.2470 s on average, 108.2 s in all");
  CHECK(contains(end_line({1, {}, 1, 1, 0.5, 1}), "Done: 1 step; trained on 1 image in 0.5 s"));
  CHECK(contains(end_line({1, {}, 1, 1, 0.5, 1}), "1 step per worker of 0.5000 s"));
}

TEST_CASE("17.1: a start that found nothing left to train says so", "[report]") {
  CHECK(end_line({14, 16.7, 0, 0, 0, 0.31}) ==
        "Done: 14 steps, best top-1 16.70 %; all were done before this start (more: --epochs, "
        "--steps), 0.3 s");
}

}  // namespace
}  // namespace ddprun::trainer
