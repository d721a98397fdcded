// What the reader and the writer of safetensors files agree on; for their files only. No LibTorch.
#pragma once

#define XXH_INLINE_ALL  // Header-only: the library need not be there at run time.
#include <fmt/format.h>
#include <xxhash.h>

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/formats/safetensors_header.h"

namespace ddprun::trainer::safetensors_format {

inline constexpr std::size_t length_bytes = 8;
// The reference implementation takes 100 MB; a parsed header takes a multiple of its size in
// memory, and that of ResNet-152 with momentum has 0.2 MB.
inline constexpr std::size_t header_bytes_max = std::size_t{16} << 20;
inline constexpr std::size_t alignment = 8;
inline constexpr const char* metadata_key = "__metadata__";
inline constexpr const char* checksum_zeros = "0000000000000000";

[[noreturn]] inline void fail(const std::string& name, const std::string& what) {
  throw SafetensorsError(name + ": " + what);
}

class Hash {
 public:
  Hash() : state_(XXH64_createState(), &XXH64_freeState) { XXH64_reset(state_.get(), 0); }
  void add(const void* data, std::size_t bytes) { XXH64_update(state_.get(), data, bytes); }
  std::string hex() const { return fmt::format("{:016x}", XXH64_digest(state_.get())); }

 private:
  std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state_;
};

}  // namespace ddprun::trainer::safetensors_format
