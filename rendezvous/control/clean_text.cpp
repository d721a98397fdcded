// UTF-8 checked by hand: '?' keeps the length, where the JSON library puts three bytes for one.
#include "rendezvous/control/clean_text.h"

namespace ddprun::rendezvous {
namespace {

// Length of the valid UTF-8 sequence at the start of `text`, or 0 (RFC 3629, section 4).
std::size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t size = lead >= 0xC2 && lead < 0xE0   ? 2
                           : lead >= 0xE0 && lead < 0xF0 ? 3
                           : lead >= 0xF0 && lead < 0xF5 ? 4
                                                         : 0;
  if (size == 0 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) >= 0xA0;
  const bool too_high = lead == 0xF4 && byte(1) >= 0x90;
  return overlong || surrogate || too_high ? 0 : size;
}

}  // namespace

std::string clean_text(std::string_view text, std::size_t bytes_max, Keep keep) {
  if (text.size() > bytes_max) {
    text = keep == Keep::Head ? text.substr(0, bytes_max) : text.substr(text.size() - bytes_max);
  }
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = utf8_sequence(text);
    if (size == 0) {
      result += '?';
      text.remove_prefix(1);
    } else {
      result += text.substr(0, size);
      text.remove_prefix(size);
    }
  }
  return result;
}

}  // namespace ddprun::rendezvous
