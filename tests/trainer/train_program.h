// What the tests that run the program `train` share.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/trainer/scratch.h"

namespace ddprun::trainer {

using Json = nlohmann::json;

inline const std::string mnist = DDPRUN_SOURCE_DIR "/data/mnist";

// For a shell. Appends, because g++ 12 warns (wrongly) about "'" + a temporary string.
inline std::string quoted(const std::string& text) {
  std::string result = "'";
  result += text;
  result += "'";
  return result;
}

struct Result {
  int code;
  std::string output;
};

// The lines of a --metrics file whose "event" is `name`.
inline std::vector<Json> events(const std::filesystem::path& metrics, const std::string& name) {
  std::vector<Json> found;
  std::istringstream lines(read_bytes(metrics));
  for (std::string line; std::getline(lines, line);) {
    if (const Json json = Json::parse(line); json["event"] == name) found.push_back(json);
  }
  return found;
}

}  // namespace ddprun::trainer
