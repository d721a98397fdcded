// Counters are kept as decimal text, because ADD's result is read with GET as well.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ddprun::rendezvous {

// By the rules of std::stoll, which c10d uses: leading white space, an optional sign, digits;
// what follows is ignored. None: no digits, or out of range.
std::optional<std::int64_t> parse_counter(std::string_view text);

// Wraps around in two's complement.
inline std::int64_t wrapping_add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

}  // namespace ddprun::rendezvous
