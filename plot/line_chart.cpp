// Coordinates have one digit behind the point: a tenth of a pixel, of which no eye sees more.
#include "plot/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "plot/svg_text.h"

namespace ddprun::plot {
namespace {

constexpr double chart_width = 620, chart_height = 260;
constexpr double plot_left = 58, plot_right = 606, plot_top = 12, plot_bottom = 226;
constexpr std::size_t columns_shown = 548;  // One for each pixel.
constexpr std::size_t dots_max = 200;       // More would be a line of dots.

std::string grid(const Axis& steps, const Axis& values) {
  std::string text;
  for (const double tick : values.ticks()) {
    const double y = values.place(tick);
    text += fmt::format(
        "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", plot_left,
        plot_right, y, y);
    text += svg_words(plot_left - 6, y + 4, tick_text(tick), "end");
  }
  for (const double tick : steps.ticks()) {
    text += svg_words(steps.place(tick), plot_bottom + 16, tick_text(tick), "middle");
  }
  return text + svg_words(plot_right, chart_height - 4, "step", "end");
}

std::string polyline(const ChartCurve& curve, const Axis& steps, const Axis& values) {
  std::string points;
  for (const Point& point : thinned(curve.points, columns_shown)) {
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", steps.place(point.at),
                          values.place(point.value));
  }
  const char* look = curve.kind == ChartCurve::Kind::Thin   ? "thin"
                     : curve.kind == ChartCurve::Kind::Dots ? "thick"
                                                            : "thick dashed";
  return fmt::format("<polyline class=\"line{} {}\" points=\"{}\"><title>{}</title></polyline>\n",
                     curve.color % series_colors, look, points, escaped_markup(curve.name));
}

std::string dots(const ChartCurve& curve, const Axis& steps, const Axis& values) {
  std::string text;
  // One point alone makes no line.
  const bool wanted = curve.kind != ChartCurve::Kind::Thin || curve.points.size() == 1;
  if (!wanted || curve.points.size() > dots_max) return text;
  for (const Point& point : curve.points) {
    text += fmt::format(
        "<circle class=\"fill{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{}, step {}: "
        "{:.6g}</title></circle>\n",
        curve.color % series_colors, steps.place(point.at), values.place(point.value),
        escaped_markup(curve.name), point.at, point.value);
  }
  return text;
}

std::string upright(const ChartMark& mark, const Axis& steps) {
  const double x = steps.place(mark.step);
  return fmt::format(
      "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"><title>{3}"
      "</title></line>\n",
      x, plot_top, plot_bottom, escaped_markup(mark.words));
}

}  // namespace

Curve thinned(const Curve& curve, std::size_t columns) {
  if (columns == 0 || curve.size() <= 2 * columns + 2) return curve;
  Curve few{curve.front()};
  const std::size_t inner = curve.size() - 2;
  for (std::size_t column = 0; column < columns; ++column) {
    const auto begin = curve.begin() + 1 + static_cast<std::ptrdiff_t>(inner * column / columns);
    const auto end =
        curve.begin() + 1 + static_cast<std::ptrdiff_t>(inner * (column + 1) / columns);
    const auto [low, high] = std::minmax_element(
        begin, end, [](const Point& a, const Point& b) { return a.value < b.value; });
    if (low == end) continue;
    few.push_back(low < high ? *low : *high);
    if (low != high) few.push_back(low < high ? *high : *low);
  }
  few.push_back(curve.back());
  return few;
}

std::string draw(const LineChart& chart) {
  std::vector<double> at, values;
  for (const ChartCurve& curve : chart.curves) {
    for (const Point& point : curve.points) {
      at.push_back(point.at);
      values.push_back(point.value);
    }
  }
  if (at.empty()) return "";
  const Axis value_axis(values, plot_bottom, plot_top, chart.scale);
  const Axis step_axis(at, plot_left, plot_right);
  const auto [first, last] = std::minmax_element(at.begin(), at.end());
  const std::string title = chart.title + (value_axis.logarithmic() ? " (logarithmic)" : "");
  std::string text = fmt::format(
      "<figure><figcaption>{0}</figcaption>\n<svg viewBox=\"0 0 {1} {2}\" role=\"img\" "
      "aria-label=\"{0}\">\n",
      escaped_markup(title), chart_width, chart_height);
  text += grid(step_axis, value_axis);
  for (const ChartMark& mark : chart.marks) {
    if (mark.step >= *first && mark.step <= *last) text += upright(mark, step_axis);
  }
  for (const ChartCurve& curve : chart.curves) {
    if (!curve.points.empty()) text += polyline(curve, step_axis, value_axis);
  }
  for (const ChartCurve& curve : chart.curves) text += dots(curve, step_axis, value_axis);
  return text + "</svg></figure>\n";
}

}  // namespace ddprun::plot
