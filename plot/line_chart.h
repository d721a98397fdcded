// Curves over steps, as SVG. A core.
#pragma once

#include <string>
#include <vector>

#include "plot/axis.h"
#include "plot/run_records.h"

namespace ddprun::plot {

struct ChartCurve {
  std::string name;  // Shown when somebody points at it.
  std::size_t color = 0;
  enum class Kind {
    Thin,   // Many points: a line.
    Dots,   // Few points, each of which counts: a line with dots.
    Dashed  // As Dots, beside another.
  } kind = Kind::Thin;
  Curve points;
};

struct ChartMark {
  double step = 0;
  std::string words;
};

struct LineChart {
  std::string title;
  std::vector<ChartCurve> curves;
  std::vector<ChartMark> marks;  // Upright lines.
  Scale scale = Scale::Even;
};

// A figure of HTML with the title and an <svg> of 620 by 260, which its page may scale; "" when no
// curve has a point. What a picture cannot show of very many points is left out, but never a
// highest or lowest one.
std::string draw(const LineChart& chart);

// At most 2 * `columns` points and the two ends: of each column's points the lowest and the
// highest.
Curve thinned(const Curve& curve, std::size_t columns);

}  // namespace ddprun::plot
