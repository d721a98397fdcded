// What an epoch leaves on the console, in one line that a person can compare with the one above it:
//
//   epoch 3/90  train 0.412  val 0.188  top-1 94.52 %  lr 0.1  26k img/s  2:31  saved, best
//
// A core: values in, text out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::trainer {

struct EpochReport {
  std::int64_t epoch = 0;                    // From 1, as people count.
  std::int64_t epochs = 0;                   // Of the run.
  std::int64_t step = 0;                     // Of the run.
  std::int64_t steps = 0;                    // Done of the epoch, which --steps may end early ...
  std::int64_t steps_per_epoch = 0;          // ... or a start in its middle have begun late.
  std::optional<double> train_loss;          // Of what rank 0 has trained on; nothing: on none.
  std::optional<double> validation_loss;     // Nothing: no validation.
  std::optional<double> top1;                // In percent.
  std::optional<double> averaged_top1;       // Of the averaged weights (--ema).
  double learning_rate = 0;                  // Of the last step.
  double images_per_s = 0;                   // Of all workers, in training steps.
  double seconds = 0;                        // With validation.
  enum class Save { None, Begun, Written };  // A checkpoint of the epoch's end.
  Save save = Save::None;
  bool best = false;  // No epoch before was more accurate.
};

std::string epoch_line(const EpochReport& report);

// "2:31", "1:00:05"; "?" for what is no time.
std::string duration_text(double seconds);

// "643", "4.7k", "26k", "1.2M": as exact as a rate is.
std::string short_number(double value);

// "0.412"; "2.500e+30" where it would be longer.
std::string loss_text(double loss, int decimals = 3);

// Which epoch of how many, from 1: "epoch 3/90".
std::string epoch_text(std::int64_t epoch, std::int64_t epochs);

}  // namespace ddprun::trainer
