// JSON lines of a file that a running program still writes to.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ddprun::testing {

// Those that are whole: the last one may have been written in part only when it is read.
inline std::vector<nlohmann::json> whole_json_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

}  // namespace ddprun::testing
