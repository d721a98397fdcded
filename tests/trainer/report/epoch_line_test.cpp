// The line of an epoch, and when lines are due: values and times in, text and answers out.
#include "trainer/report/epoch_line.h"

#include <limits>
#include <vector>

#include "tests/testing/catch.h"
#include "trainer/report/line_schedule.h"

namespace ddprun::trainer {
namespace {

using Save = EpochReport::Save;

EpochReport whole_epoch() {
  return {.epoch = 3,
          .epochs = 90,
          .step = 15,
          .steps = 5,
          .steps_per_epoch = 5,
          .train_loss = 0.4118,
          .validation_loss = 0.1881,
          .top1 = 94.521,
          .learning_rate = 0.1,
          .images_per_s = 26'123,
          .seconds = 151,
          .save = Save::Written,
          .best = true};
}

// When lines come of steps that are done every `step_s`, up to `end_s`.
std::vector<double> lines_of(LineSchedule& schedule, double step_s, double end_s) {
  std::vector<double> times;
  for (int step = 0; step * step_s <= end_s; ++step) {
    const double now_s = step * step_s;
    if (!schedule.due(now_s)) continue;
    times.push_back(now_s);
    schedule.printed(now_s);
  }
  return times;
}

TEST_CASE("an epoch is one line of what a person compares", "[trainer][report]") {
  CHECK(epoch_line(whole_epoch()) ==
        "epoch 3/90  train 0.412  val 0.188  top-1 94.52 %  lr 0.1  26k img/s  2:31  saved, best");
}

TEST_CASE("an epoch's line leaves out what was not done", "[trainer][report]") {
  EpochReport report = whole_epoch();
  report.best = false;
  report.save = Save::Begun;
  CHECK(epoch_line(report).ends_with("2:31  saving"));
  report.save = Save::None;
  CHECK(epoch_line(report).ends_with("2:31"));
  report.best = true;
  CHECK(epoch_line(report).ends_with("2:31  best"));

  report.best = false;
  report.validation_loss = report.top1 = std::nullopt;
  CHECK(epoch_line(report) == "epoch 3/90  train 0.412  lr 0.1  26k img/s  2:31");

  report.steps = 2;  // --steps ended the run.
  CHECK(epoch_line(report) == "epoch 3/90  2 of 5 steps  train 0.412  lr 0.1  26k img/s  2:31");

  report = whole_epoch();
  report.train_loss = std::nullopt;  // Stopped before the validation, which alone was left to do.
  report.averaged_top1 = 95;
  CHECK(epoch_line(report) ==
        "epoch 3/90  val 0.188  top-1 94.52 %  EMA 95.00 %  2:31  saved, best");
}

TEST_CASE("rates and times are as exact as they are known", "[trainer][report]") {
  CHECK(short_number(0.3) == "0.3");
  CHECK(short_number(9.96) == "10");
  CHECK(short_number(643.1) == "643");
  CHECK(short_number(999.6) == "1.0k");
  CHECK(short_number(4'691) == "4.7k");
  CHECK(short_number(9'960) == "10k");
  CHECK(short_number(26'123) == "26k");
  CHECK(short_number(999'600) == "1.0M");
  CHECK(short_number(std::numeric_limits<double>::infinity()) == "?");
  CHECK(duration_text(59.6) == "1:00");
  CHECK(duration_text(3'605) == "1:00:05");
  CHECK(duration_text(-1) == "?");
  CHECK(duration_text(std::numeric_limits<double>::quiet_NaN()) == "?");
  CHECK(loss_text(0.41234) == "0.412");
  CHECK(loss_text(999'999) == "999999.000");
  CHECK(loss_text(-2.5e30) == "-2.500e+30");
  CHECK(loss_text(1e38, 4) == "1.0000e+38");
  CHECK(loss_text(std::numeric_limits<double>::quiet_NaN()) == "nan");
}

TEST_CASE("lines into a file come by time, the seldomer the longer a run is", "[trainer][report]") {
  LineSchedule schedule;
  const std::vector<double> times{0, 10, 30, 70, 130, 190, 250};
  CHECK(lines_of(schedule, 0.5, 300) == times);
  LineSchedule slow;  // A step of two minutes: each is told.
  CHECK(lines_of(slow, 120, 500) == std::vector<double>{0, 120, 240, 360, 480});
}

TEST_CASE("an epoch's line stands for the one that was due", "[trainer][report]") {
  LineSchedule schedule;
  schedule.printed(0);
  schedule.told_otherwise(9);
  CHECK_FALSE(schedule.due(10));
  CHECK(schedule.due(9 + 2 * LineSchedule::first_gap_s));
  // Epochs of a second leave their own lines and no others.
  for (double now_s = 30; now_s < 600; now_s += 1) {
    CHECK_FALSE((now_s > 30 && schedule.due(now_s)));
    schedule.told_otherwise(now_s);
  }
}

}  // namespace
}  // namespace ddprun::trainer
