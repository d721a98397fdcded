// Ticks are counted by a whole number and not by adding up: of large numbers that lie close to each
// other a sum may never reach the end.
#include "plot/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ddprun::plot {
namespace {

constexpr double log_ratio_least = 50;
constexpr int ticks_wanted = 5;
constexpr int ticks_max = 12;

// The nearest of 1, 2, 5 times a power of ten at or above `least`.
double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace

Axis::Axis(const std::vector<double>& values, double first, double last, Scale scale)
    : first_(first), last_(last) {
  if (!values.empty()) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    low_ = *low;
    high_ = *high;
  }
  if (scale == Scale::FromZero) {
    low_ = std::min(low_, 0.0);
    high_ = std::max(high_, 0.0);
  }
  logarithmic_ = scale == Scale::LogAllowed && low_ > 1e-300 && high_ / low_ >= log_ratio_least;
  // A curve that stays where it is lies in the middle.
  const double least_width = std::max(std::abs(low_), std::abs(high_)) * 1e-6;
  if (!logarithmic_ && high_ - low_ <= least_width) {
    const double margin = low_ == 0 ? 1 : std::abs(low_) * 0.1;
    low_ -= margin;
    high_ += margin;
  }
  if (logarithmic_) {
    tick_decades();
  } else {
    tick_evenly();
  }
}

double Axis::place(double value) const {
  const double share = logarithmic_ ? std::log(value / low_) / std::log(high_ / low_)
                                    : (value - low_) / (high_ - low_);
  return first_ + share * (last_ - first_);
}

void Axis::tick_evenly() {
  const double step = round_step((high_ - low_) / ticks_wanted);
  const double begin = std::ceil(low_ / step);
  for (int i = 0; i < ticks_max; ++i) {
    const double tick = (begin + i) * step;
    if (tick > high_) break;
    ticks_.push_back(tick);
  }
}

void Axis::tick_decades() {
  const double decades = std::log10(high_ / low_);
  // 1, 2 and 5 of each decade where there are few of them; otherwise each so many decades' 1.
  const int stride = std::max(1, static_cast<int>(std::ceil(decades / 6)));
  const int begin = static_cast<int>(std::floor(std::log10(low_)));
  for (int i = 0; begin + i <= std::log10(high_); i += stride) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10, begin + i);
      const bool shown = factor == 1 || decades < 2.5;
      if (shown && tick >= low_ && tick <= high_) ticks_.push_back(tick);
    }
  }
}

std::string tick_text(double value) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size >= 1e15 || size < 1e-4) return fmt::format("{:.3g}", value);
  if (size >= 1e9) return fmt::format("{:.4g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

}  // namespace ddprun::plot
