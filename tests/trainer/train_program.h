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

struct Result {
  int code;
  std::string output;
};

// Before a command: one thread, and nothing of a launcher that the test itself may run under.
inline const std::string by_itself =
    "env -u RANK -u WORLD_SIZE -u LOCAL_RANK -u LOCAL_WORLD_SIZE OMP_NUM_THREADS=1 ";

// `train` as so many workers under ddprun; 0: without a launcher.
inline Result run_train(int workers, const std::string& arguments, const ScratchFolder& folder,
                        const std::string& environment = "") {
  std::string command = by_itself + environment;
  if (workers > 0) {
    command += " '" DDPRUN_LAUNCHER "' --standalone --nproc-per-node " + std::to_string(workers);
  }
  command += " '" DDPRUN_TRAIN "' " + arguments;
  const int code = run_command(command, folder / "out");
  return {code, content_of(folder / "out")};
}

// The lines of a --metrics file whose "event" is `name`.
inline std::vector<Json> events(const std::filesystem::path& metrics, const std::string& name) {
  std::vector<Json> found;
  std::istringstream lines(content_of(metrics));
  for (std::string line; std::getline(lines, line);) {
    if (const Json json = Json::parse(line); json["event"] == name) found.push_back(json);
  }
  return found;
}

// Of its "train" events.
inline std::vector<double> losses(const std::filesystem::path& metrics) {
  std::vector<double> values;
  for (const Json& step : events(metrics, "train")) values.push_back(step["loss"]);
  return values;
}

}  // namespace ddprun::trainer
