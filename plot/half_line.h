// Files of records, a line each, to which every start adds.
#pragma once

#include <filesystem>
#include <fstream>
#include <system_error>

namespace ddprun::plot {

// Whether somebody has left half a line there: a process that crashed, or whose disk was full. What
// is added would be lost with it, unless a line's end comes first. False where there is no file.
inline bool ends_within_line(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  return file.tellg() > 0 && file.seekg(-1, std::ios::end) && file.get() != '\n';
}

}  // namespace ddprun::plot
