// The kernel's random bytes as text. Not std::random_device: the C++ library may serve that from
// an instruction of the processor, and some of these names keep strangers out.
#include "rendezvous/random_id.h"

#include <sys/random.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <system_error>

namespace ddprun::rendezvous {

std::string random_id(std::size_t bytes) {
  std::array<unsigned char, 64> random{};
  assert(bytes <= random.size());
  // Up to 256 bytes come whole or not at all, so there is no rest to ask for.
  if (::getrandom(random.data(), bytes, 0) != static_cast<ssize_t>(bytes)) {
    throw std::system_error(errno, std::generic_category(),
                            "cannot make a random name: the kernel gave no random bytes");
  }
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    text += "0123456789abcdef"[random[i] >> 4];
    text += "0123456789abcdef"[random[i] & 15];
  }
  return text;
}

}  // namespace ddprun::rendezvous
