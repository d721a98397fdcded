// An axis of a chart: which numbers lie where, and which of them are written beside it. A core.
#pragma once

#include <string>
#include <vector>

namespace ddprun::plot {

enum class Scale {
  Even,        // From the smallest value to the largest.
  FromZero,    // So that a value looks as large as it is, and its noise as small.
  LogAllowed,  // Logarithmic where all values are above 0 and the largest is many times the
               // smallest: the first steps' loss would press all others flat.
};

class Axis {
 public:
  // Holds all `values`, which are finite; none: 0 to 1. `first` and `last` are the coordinates of
  // its ends.
  Axis(const std::vector<double>& values, double first, double last, Scale scale = Scale::Even);

  double place(double value) const;
  bool logarithmic() const { return logarithmic_; }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  void tick_evenly();
  void tick_decades();

  double low_ = 0, high_ = 1;
  double first_, last_;
  bool logarithmic_ = false;
  std::vector<double> ticks_;
};

// "0.05", "1.5k", "2M": at most four digits.
std::string tick_text(double value);

}  // namespace ddprun::plot
