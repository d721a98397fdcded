// When the console gets colors, and which. A core: the caller says what the environment holds.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun::launcher {

enum class ColorWhen { Auto, Always, Never };  // --color

// `no_color`, `term`: the variables NO_COLOR (https://no-color.org: any text but the empty one
// means no) and TERM. What the user typed wins over both.
bool use_color(ColorWhen when, bool is_terminal, const std::optional<std::string>& no_color,
               const std::optional<std::string>& term);

// What kind of line the launcher itself writes.
enum class LineKind { Plain, Warning, Error };

// Indices into the 256 colors of a terminal. All of them stand out from black and from white (a
// contrast of at least 3 to both), because nobody can ask a terminal for its background.
int rank_color(int local_rank);
int line_color(LineKind kind);  // -1: as it is.

// `text` in this color, then the terminal's own again. -1: `text` itself.
std::string colored(std::string_view text, int color);

}  // namespace ddprun::launcher
