// Bytes of UTF-8 pass, but for the control characters U+0080 to U+009F: U+009B alone begins what
// escape and a bracket do, on terminals that know it.
#include "launcher/report/visible_text.h"

namespace ddprun::launcher {
namespace {

// The bytes of a color sequence (ECMA-48, SGR) at the start of `text`, or 0.
std::size_t color_sequence(std::string_view text) {
  if (text.substr(0, 2) != "\033[") return 0;
  const std::size_t end = text.find_first_not_of("0123456789;:", 2);
  return end != text.npos && text[end] == 'm' ? end + 1 : 0;
}

}  // namespace

std::string visible_text(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    if (const std::size_t color = color_sequence(text)) {
      text.remove_prefix(color);
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[0]);
    const auto next = text.size() > 1 ? static_cast<unsigned char>(text[1]) : 0u;
    const bool high_control = byte == 0xC2 && next >= 0x80 && next < 0xA0;
    if (high_control) {
      result += "M-^";
      result += static_cast<char>(next - 0x80 + '@');
      text.remove_prefix(2);
      continue;
    }
    if ((byte < 0x20 && byte != '\t' && byte != '\n') || byte == 0x7F) {
      result += '^';
      result += static_cast<char>(byte ^ 0x40);
    } else {
      result += text[0];
    }
    text.remove_prefix(1);
  }
  return result;
}

}  // namespace ddprun::launcher
