// Bytes of UTF-8 pass, but for the control characters U+0080 to U+009F: U+009B alone begins what
// escape and a bracket do, on terminals that know it. So does the byte 0x9B where it is part of no
// character, on those that do not know UTF-8.
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

// How many bytes the character that `byte` begins has besides.
int bytes_after(unsigned char byte) {
  return byte < 0xC0 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
}

bool is_upper_control(unsigned char byte) { return byte >= 0x80 && byte < 0xA0; }

bool is_shown(unsigned char byte, Lines lines) {
  if (byte == '\t' || byte == '\n') return lines == Lines::Keep;
  return byte >= 0x20 && byte != 0x7F;
}

}  // namespace

std::string visible_text(std::string_view text, Lines lines) {
  std::string result;
  int expected = 0;  // Bytes of a character that has begun.
  while (!text.empty()) {
    if (const std::size_t color = color_sequence(text)) {
      text.remove_prefix(color);
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[0]);
    const auto next = text.size() > 1 ? static_cast<unsigned char>(text[1]) : 0u;
    const bool goes_on = expected > 0 && byte >= 0x80 && byte < 0xC0;
    expected = goes_on ? expected - 1 : bytes_after(byte);
    std::size_t size = 1;
    const bool in_two_bytes = byte == 0xC2 && is_upper_control(next);
    if (in_two_bytes || (is_upper_control(byte) && !goes_on)) {
      size = in_two_bytes ? 2 : 1;
      result += "M-^";
      result += static_cast<char>((in_two_bytes ? next : byte) - 0x80 + '@');
      expected = 0;
    } else if (turns_text(text)) {
      result += '?';
      size = 3;
      expected = 0;
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
