// Named tensors in one file that Python opens too: the safetensors format.
//
//   uint64 little-endian   bytes of the header, padded with spaces so that the data is 8-byte
//   aligned header                 JSON: "__metadata__": {string: string},
//                          name: {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]} ...
//   data                   packed, C order; offsets count from here; no holes, no overlaps
//
// Files are treated as hostile: every number is checked before it is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/formats/safetensors_header.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// The file may be sound, but cannot be read now: no permission, a broken disk.
class SafetensorsAccessError : public SafetensorsError {
 public:
  using SafetensorsError::SafetensorsError;
};

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

struct Safetensors {
  NamedTensors tensors;  // In file order; own their memory; on the CPU.
  std::map<std::string, std::string> metadata;
};

// Where bytes go, in order; and some of them once more, over what is there.
class SafetensorsSink {
 public:
  virtual ~SafetensorsSink() = default;
  // Both throw SafetensorsError.
  virtual void write(const void* data, std::size_t bytes) = 0;
  virtual void overwrite(const std::string& bytes, std::size_t at) = 0;
};

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::string checksum;  // 16 hexadecimal digits.
};

// Writes to `path`, replacing what is there, and syncs it to the disk. Tensors of any layout and
// device. The metadata gains "xxh64": the XXH64 of the whole file with that value as zeros. Throws
// SafetensorsError; a part of the file may then be there.
WrittenFile write_safetensors(const std::filesystem::path& path, const Safetensors& contents);

// The same bytes into `sink`.
WrittenFile write_safetensors(SafetensorsSink& sink, const Safetensors& contents);

// Checks the checksum when the file has one. Throws SafetensorsError; SafetensorsAccessError where
// that says nothing about the content.
Safetensors read_safetensors(const std::filesystem::path& path);

// The same for a file that is already in memory; `name` is for messages.
Safetensors parse_safetensors(std::string_view file, const std::string& name);

}  // namespace ddprun::trainer
