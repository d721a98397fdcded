// std::stoll's rules without its exceptions: a value that is no number is what a client may send.
#include "rendezvous/store/store_number.h"

#include <charconv>
#include <system_error>

namespace ddprun::rendezvous {

std::optional<std::int64_t> parse_counter(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t\n\v\f\r");
  if (start == std::string_view::npos) return std::nullopt;
  text.remove_prefix(start);
  if (text.front() == '+') {
    text.remove_prefix(1);
    if (text.empty() || text.front() == '-') return std::nullopt;
  }
  std::int64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc()) return std::nullopt;
  return number;
}

}  // namespace ddprun::rendezvous
