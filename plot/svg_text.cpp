// Colors are CSS classes because an attribute cannot depend on prefers-color-scheme.
#include "plot/svg_text.h"

#include <fmt/format.h>

namespace ddprun::plot {
namespace {

struct PageColor {
  const char* name;
  const char* light;
  const char* dark;
};

// The first series have Okabe and Ito's colors, which also those tell apart who see no red or
// green; for the dark they are lightened, or blue would sink into the paper.
constexpr PageColor page_colors[] = {
    {"paper", "#ffffff", "#0d1117"},   {"panel", "#ffffff", "#161b22"},
    {"words", "#1f2328", "#e6edf3"},   {"quiet", "#59636e", "#9da7b3"},
    {"grid", "#e3e7ec", "#2a3038"},    {"frame", "#d0d7de", "#30363d"},
    {"c0", "#0072b2", "#56b4e9"},      {"c1", "#d55e00", "#ff9d5c"},
    {"c2", "#009e73", "#3ddbb0"},      {"c3", "#cc79a7", "#e6a5c9"},
    {"c4", "#8a6d00", "#e0c341"},      {"c5", "#6a51c7", "#b4a2ff"},
    {"good", "#1a7f37", "#3fb950"},    {"bad", "#cf222e", "#ff7b72"},
    {"compute", "#0072b2", "#56b4e9"}, {"waiting", "#d55e00", "#ff9d5c"},
    {"data", "#8a6d00", "#e0c341"},
};

std::string all_of_page_style() {
  std::string light, dark, classes;
  for (const PageColor& color : page_colors) {
    light += fmt::format("--{}:{};", color.name, color.light);
    dark += fmt::format("--{}:{};", color.name, color.dark);
  }
  for (std::size_t i = 0; i < series_colors; ++i) {
    classes +=
        fmt::format(".line{0}{{stroke:var(--c{0});fill:none}}.fill{0}{{fill:var(--c{0})}}", i);
  }
  for (const char* name : {"good", "bad", "compute", "waiting", "data", "words", "quiet"}) {
    classes += fmt::format(".{0}{{fill:var(--{0})}}", name);
  }
  return fmt::format(
      ":root{{color-scheme:light dark;{}}}\n@media (prefers-color-scheme:dark){{:root{{{}}}}}\n{}\n"
      "text{{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}}"
      ".grid{{stroke:var(--grid)}}.mark{{stroke:var(--bad);stroke-dasharray:2 3}}"
      ".thin{{stroke-width:1.2;opacity:.75}}.thick{{stroke-width:2}}.dashed{{stroke-dasharray:6 "
      "4}}",
      light, dark, classes);
}

}  // namespace

std::string escaped_markup(std::string_view words) {
  std::string text;
  for (const char c : words) {
    switch (c) {
      case '&':
        text += "&amp;";
        break;
      case '<':
        text += "&lt;";
        break;
      case '>':
        text += "&gt;";
        break;
      case '"':
        text += "&quot;";
        break;
      case '\'':
        text += "&#39;";
        break;
      default:
        // XML has no control characters, not even escaped: a reader would refuse all of it.
        text += static_cast<unsigned char>(c) < 32 || c == 127 ? ' ' : c;
    }
  }
  return text;
}

std::string svg_words(double x, double y, std::string_view words, const char* anchor,
                      const char* kind) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
                     kind, x, y, anchor, escaped_markup(words));
}

const std::string& page_style() {
  static const std::string style = all_of_page_style();
  return style;
}

}  // namespace ddprun::plot
