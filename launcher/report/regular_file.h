// Reads files that somebody else has made, who may have made something else of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::launcher {

struct RegularFile {
  std::string content;           // At most the number of bytes that was asked for.
  std::int64_t modified_ns = 0;  // Since 1970, by the clock of the file system.

  bool operator==(const RegularFile&) const = default;
};

// Nothing when there is none, or when it is no regular file: a pipe in its place would hold us up
// until somebody writes to it, and that may be never.
std::optional<RegularFile> read_regular_file(const std::string& path, std::size_t bytes_max);

}  // namespace ddprun::launcher
