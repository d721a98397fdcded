// Running values of a training pass, and the accuracy counts that feed them.
#pragma once

#include <chrono>
#include <cstdint>

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// The last value and the average of all, weighted by the number of samples behind each.
class Meter {
 public:
  void update(double value, double weight = 1) {
    value_ = value;
    sum_ += value * weight;
    weight_ += weight;
  }
  double value() const { return value_; }
  double average() const { return weight_ > 0 ? sum_ / weight_ : 0; }

 private:
  double value_ = 0;
  double sum_ = 0;
  double weight_ = 0;
};

// Shows `last` and the average of all samples, of which `last` are a part. Sums and numbers of
// samples.
Meter meter_of(double last_sum, double last_count, double sum, double count);

// Seconds since it was made or lap() was last called, on the monotonic clock.
class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(start_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// (3) float64 on the logits' device: the sum of losses, how many labels have the highest score,
// and how many are among the five highest. Of equal scores the lower class ranks first; a score
// that is not a number ranks before all others, so that it never counts as right.
//   logits: (N, classes); labels: (N); mean_loss: a scalar over the N images
torch::Tensor batch_counts(const torch::Tensor& logits, const torch::Tensor& labels,
                           const torch::Tensor& mean_loss);

}  // namespace ddprun::trainer
