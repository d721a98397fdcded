// What the reader and the writer of safetensors files agree on; for their files only. No LibTorch.
#pragma once

#include <cstddef>
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

}  // namespace ddprun::trainer::safetensors_format
