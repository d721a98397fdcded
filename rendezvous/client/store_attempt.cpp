#include "rendezvous/client/store_attempt.h"

#include <random>

namespace ddprun::rendezvous {

std::string random_nonce() {
  static constexpr char digits[] = "0123456789abcdef";
  std::random_device device;
  std::string nonce;
  for (int word = 0; word < 2; ++word) {
    for (auto bits = device(), left = 8u; left > 0; --left, bits >>= 4) nonce += digits[bits % 16];
  }
  return nonce;
}

}  // namespace ddprun::rendezvous
