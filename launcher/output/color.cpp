// Of the 256 colours, which themes leave alone, those that show on black and on white.
#include "launcher/output/color.h"

#include <array>

namespace ddprun::launcher {
namespace {

// Neighbours differ in hue: blue, orange, green, pink, teal, violet, olive, red.
constexpr std::array<int, 8> rank_colors = {32, 166, 64, 169, 30, 99, 136, 168};
constexpr int warning_color = 136;  // A yellow that white paper shows too.
constexpr int error_color = 160;    // Red.

}  // namespace

bool use_color(ColorWhen when, bool is_terminal, const std::optional<std::string>& no_color,
               const std::optional<std::string>& term) {
  if (when != ColorWhen::Auto) return when == ColorWhen::Always;
  const bool refused = no_color && !no_color->empty();
  const bool capable = term && !term->empty() && *term != "dumb";
  return is_terminal && !refused && capable;
}

int rank_color(int local_rank) {
  return rank_colors[static_cast<std::size_t>(local_rank) % rank_colors.size()];
}

int line_color(LineKind kind) {
  switch (kind) {
    case LineKind::Warning:
      return warning_color;
    case LineKind::Error:
      return error_color;
    case LineKind::Plain:
      break;
  }
  return -1;
}

std::string colored(std::string_view text, int color) {
  if (color < 0 || text.empty()) return std::string(text);
  return "\033[38;5;" + std::to_string(color) + "m" + std::string(text) + "\033[39m";
}

}  // namespace ddprun::launcher
