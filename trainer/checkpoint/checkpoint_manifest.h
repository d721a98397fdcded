// manifest.json of a checkpoint folder: the files, their sizes and checksums.
//
//   {"files": {"best.safetensors": {"bytes": 46837, "xxh64": "0123456789abcdef"}, ...},
//    "xxh64": "..."}                       the last is that of "files", as written without spaces
//
// A file's checksum is the one in its own metadata: XXH64 of the file with that value as zeros.
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace ddprun::trainer {

struct ManifestEntry {
  std::uint64_t bytes = 0;
  std::string checksum;  // 16 hexadecimal digits.
};

using CheckpointManifest = std::map<std::string, ManifestEntry>;  // By file name.

std::string manifest_text(const CheckpointManifest& manifest);

// Throws std::invalid_argument saying what is wrong.
CheckpointManifest parse_manifest(std::string_view text);

}  // namespace ddprun::trainer
