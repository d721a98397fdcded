// A range that is empty or half a number is refused: it would trace nothing, without a word.
#include "trainer/profile/profile_window.h"

#include "worker/parse_number.h"

namespace ddprun::trainer {
namespace {

// All of `text` as a number of steps.
std::optional<std::int64_t> parse_steps(std::string_view text) {
  const auto number = worker::parse_number<std::int64_t>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

}  // namespace

std::optional<ProfileWindow> parse_profile_window(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto first = parse_steps(text.substr(0, colon));
  const auto last = parse_steps(text.substr(colon + 1));
  if (!first || !last || *first >= *last) return std::nullopt;
  return ProfileWindow{*first, *last};
}

}  // namespace ddprun::trainer
