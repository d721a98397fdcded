// The scan for NaN and infinity, as integers: both have all bits of the exponent set.
#include "trainer/checkpoint/finite_values.h"

#include <cstdint>

namespace ddprun::trainer {
namespace {

// Without a way out of the loop, so that it is vectorised: memory sets the pace, and an infinity is
// found once in the life of a run.
template <typename Word>
bool none_has_all(const std::byte* bytes, std::size_t count, Word exponent) {
  const auto* words = reinterpret_cast<const Word*>(bytes);
  Word found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    found = static_cast<Word>(found | ((words[i] & exponent) == exponent ? 1 : 0));
  }
  return found == 0;
}

}  // namespace

bool all_finite(std::span<const std::byte> bytes, FloatKind kind) {
  switch (kind) {
    case FloatKind::Half:
      return none_has_all<std::uint16_t>(bytes.data(), bytes.size() / 2, 0x7c00);
    case FloatKind::BFloat16:
      return none_has_all<std::uint16_t>(bytes.data(), bytes.size() / 2, 0x7f80);
    case FloatKind::Single:
      return none_has_all<std::uint32_t>(bytes.data(), bytes.size() / 4, 0x7f800000);
    case FloatKind::Double:
      return none_has_all<std::uint64_t>(bytes.data(), bytes.size() / 8, 0x7ff0000000000000);
  }
  return true;
}

}  // namespace ddprun::trainer
