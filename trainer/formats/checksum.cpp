// A file for itself because it is built with -O3, also where its users are not: with -O1 this loop
// over a checkpoint's bytes takes 2.6 times as long.
#include "trainer/formats/checksum.h"

#define XXH_INLINE_ALL  // Header-only: the library need not be there at run time.
#include <fmt/format.h>
#include <xxhash.h>

namespace ddprun::trainer {

struct Checksum::State {
  XXH64_state_t hash{};
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH64_reset(&state_->hash, 0); }
Checksum::~Checksum() = default;

void Checksum::add(const void* data, std::size_t bytes) {
  XXH64_update(&state_->hash, data, bytes);
}

std::string Checksum::hex() const { return fmt::format("{:016x}", XXH64_digest(&state_->hash)); }

}  // namespace ddprun::trainer
