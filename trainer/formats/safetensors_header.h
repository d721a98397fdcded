// What the header of a safetensors file says, checked against the file; safetensors.h has the
// format. No LibTorch. A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::trainer {

// A file that cannot be read or written, or that breaks the format. The message names the file and
// what is wrong with it.
class SafetensorsError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                // One of the format's that LibTorch has too: "F32".
  std::vector<std::int64_t> shape;  // Agrees with dtype and size.
  std::size_t begin = 0;            // Bytes of the data.
  std::size_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // In file order: one begins where the one before ends.
  std::map<std::string, std::string> metadata;
  std::string_view data;  // A part of the file.
};

// The metadata's key of the XXH64 of the whole file, taken with that value as zeros.
inline constexpr const char* checksum_key = "xxh64";

// Of a whole file; `name` is for messages. Checks the checksum when the file has one. Throws
// SafetensorsError.
SafetensorsHeader parse_safetensors_header(std::string_view file, const std::string& name);

}  // namespace ddprun::trainer
