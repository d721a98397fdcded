// What a run of `train` leaves behind that two runs can be compared by, to the bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "tests/trainer/train_program.h"

namespace ddprun::trainer {

// What a run ends with: tensors of its last checkpoint, and what it logged of each step.
struct Trail {
  std::string weights;  // With momentum, running statistics and averages.
  std::vector<Json> steps;
  std::vector<Json> validations;

  bool operator==(const Trail&) const = default;
};

inline Json without_times(const Json& event, const std::vector<std::string>& names) {
  Json left;
  for (const std::string& name : names) {
    if (event.contains(name)) left[name] = event[name];
  }
  return left;
}

inline std::string tensor_bytes(const std::filesystem::path& checkpoint) {
  const std::string all = content_of(checkpoint);
  std::uint64_t header_bytes = 0;
  if (all.size() <= sizeof header_bytes) {
    throw std::runtime_error(checkpoint.string() + " is no checkpoint");
  }
  std::memcpy(&header_bytes, all.data(), sizeof header_bytes);
  return all.substr(sizeof header_bytes + header_bytes);
}

// Of a run with --metrics and --checkpoint-dir in the folder, as "metrics" and "checkpoints".
inline Trail trail_of(const ScratchFolder& folder) {
  Trail trail{tensor_bytes(folder / "checkpoints/last.safetensors"), {}, {}};
  for (const Json& event : events(folder / "metrics", "train")) {
    trail.steps.push_back(
        without_times(event, {"step", "epoch", "loss", "prec1", "prec5", "grad_norm", "lr"}));
  }
  for (const Json& event : events(folder / "metrics", "validation")) {
    trail.validations.push_back(without_times(event, {"step", "loss", "prec1", "prec5"}));
  }
  return trail;
}

}  // namespace ddprun::trainer
