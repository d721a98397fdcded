// Words in SVG and HTML, and the colors of runs, which every part of a page shares. A core.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun::plot {

// As text or between quotes; what no page may hold (control characters) becomes a space.
std::string escaped_markup(std::string_view words);

// A text element. `kind` is a class of page_style(), `anchor` SVG's.
std::string svg_words(double x, double y, std::string_view words, const char* anchor,
                      const char* kind = "quiet");

// Colors that people tell apart who do not see all of them (Okabe and Ito); then again from the
// first.
constexpr std::size_t series_colors = 6;

// CSS of all pictures, with a dark set for readers who want it. Classes: line0.., fill0.. of runs;
// good, bad, data, waiting, compute; grid, axis, mark; words, quiet.
const std::string& page_style();

}  // namespace ddprun::plot
