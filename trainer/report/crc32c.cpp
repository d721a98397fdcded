// See crc32c.h. RFC 3720, appendix B.4: reflected polynomial 0x82f63b78, all bits inverted before
// and after.
#include "trainer/report/crc32c.h"

#include <array>
#include <cstddef>

namespace ddprun::trainer {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82f63b78U : 0U);
    table[byte] = rest;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> table = make_table();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xffU];
  }
  return ~crc;
}

}  // namespace ddprun::trainer
