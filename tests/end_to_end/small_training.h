// A training run of seconds on made-up images, and what came of it.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/words.h"

namespace ddprun::testing {

// Sums differ in their last bits with the number of threads. A node with a single worker leaves the
// number to LibTorch, one with more says 1.
inline const std::map<std::string, std::string> one_thread = {{"OMP_NUM_THREADS", "1"}};

inline std::vector<std::string> small_training(const std::vector<std::string>& more) {
  return std::vector<std::string>{binary("train")} +
         words_of(
             "--dataset synthetic --image-size 16 --synthetic-images 512 --synthetic-classes 10 "
             "--model resnet20 --batch-size 16 --seed 3 --device cpu --no-validation") +
         more;
}

// The checkpoint that was written last.
inline std::filesystem::path newest_checkpoint_in(const std::string& folder) {
  std::optional<std::filesystem::path> newest;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().extension() != ".safetensors") continue;
    if (!newest || entry.last_write_time() > std::filesystem::last_write_time(*newest)) {
      newest = entry.path();
    }
  }
  if (!newest) throw std::runtime_error("no checkpoint in " + folder);
  return *newest;
}

// The bytes of its tensors, without the header, which holds times.
inline std::string newest_tensors(const std::string& folder) {
  const std::string all = content_of(newest_checkpoint_in(folder));
  std::uint64_t header_bytes = 0;
  if (all.size() <= sizeof header_bytes) throw std::runtime_error("an empty checkpoint");
  std::memcpy(&header_bytes, all.data(), sizeof header_bytes);
  return all.substr(sizeof header_bytes + header_bytes);
}

}  // namespace ddprun::testing
