// Bytes of UTF-8 pass, but for the control characters U+0080 to U+009F: U+009B alone begins what
// escape and a bracket do, on terminals that know it.
#include "rendezvous/control/visible_text.h"

namespace ddprun::rendezvous {
namespace {

// The bytes of a color sequence (ECMA-48, SGR) at the start of `text`, or 0.
std::size_t color_sequence(std::string_view text) {
  if (text.substr(0, 2) != "\033[") return 0;
  const std::size_t end = text.find_first_not_of("0123456789;:", 2);
  return end != text.npos && text[end] == 'm' ? end + 1 : 0;
}

// U+2028 to U+202E and U+2066 to U+2069: ends of line and paragraph, and directions.
bool turns_text(std::string_view text) {
  if (text.size() < 3 || text[0] != '\xE2') return false;
  const auto last = static_cast<unsigned char>(text[2]);
  return (text[1] == '\x80' && last >= 0xA8 && last <= 0xAE) ||
         (text[1] == '\x81' && last >= 0xA6 && last <= 0xA9);
}

bool is_shown(unsigned char byte, Lines lines) {
  if (byte == '\t' || byte == '\n') return lines == Lines::Keep;
  return byte >= 0x20 && byte != 0x7F;
}

}  // namespace

std::string visible_text(std::string_view text, Lines lines) {
  std::string result;
  while (!text.empty()) {
    if (const std::size_t color = color_sequence(text)) {
      text.remove_prefix(color);
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[0]);
    const auto next = text.size() > 1 ? static_cast<unsigned char>(text[1]) : 0u;
    std::size_t size = 1;
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {
      result += "M-^";
      result += static_cast<char>(next - 0x80 + '@');
      size = 2;
    } else if (turns_text(text)) {
      result += '?';
      size = 3;
    } else if (is_shown(byte, lines)) {
      result += text[0];
    } else {
      result += '^';
      result += static_cast<char>(byte ^ 0x40);
    }
    text.remove_prefix(size);
  }
  return result;
}

}  // namespace ddprun::rendezvous
