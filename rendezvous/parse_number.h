// Numbers in texts that somebody else has written: variables, options, names of files.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace ddprun::rendezvous {

// The number that all of `text` spells, or nothing: also where there are blanks, a plus, a rest, or
// more than Number holds.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace ddprun::rendezvous
