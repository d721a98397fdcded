// What tests of trainer/data share: the real samples beside the project, and the oracle's images.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "tests/trainer/scratch.h"
#include "trainer/data/dataset.h"

namespace ddprun::trainer {

// Real data sets in small: $DDPRUN_SHARED_DATA, or shared/data beside the project.
inline std::optional<std::filesystem::path> shared_data(const std::string& part) {
  const char* named = std::getenv("DDPRUN_SHARED_DATA");
  const std::filesystem::path folder =
      named != nullptr ? named : DDPRUN_SOURCE_DIR "/../shared/data";
  if (!std::filesystem::exists(folder / part)) return std::nullopt;
  return folder / part;
}

inline const char* no_shared_data = "no shared/data beside the project, nor DDPRUN_SHARED_DATA";

// An argument of a shell's command, after a space.
inline std::string argument(const std::filesystem::path& path) {
  std::string text = " ";
  text += in_quotes(path.string());
  return text;
}

// What data_oracle.py prints into `output`.
inline int run_data_oracle(const std::string& command, const std::filesystem::path& output,
                           const std::string& arguments, const std::filesystem::path& log) {
  std::string line = argument(oracle_python);
  line += " -B";
  line += argument(DDPRUN_SOURCE_DIR "/tests/trainer/data/data_oracle.py");
  line += ' ';
  line += command + argument(output) + ' ' + arguments;
  return run_command(line, log);
}

struct OracleImage {
  bool readable = false;
  ImageSize size;
  std::vector<std::uint8_t> pixels;  // Interleaved.
};

inline std::vector<OracleImage> read_oracle_images(const std::filesystem::path& path) {
  const std::string bytes = content_of(path);
  std::vector<OracleImage> images;
  for (std::size_t at = 0; at + 8 <= bytes.size();) {
    std::int32_t size[2];
    std::memcpy(size, bytes.data() + at, sizeof size);
    at += sizeof size;
    OracleImage image;
    if (size[0] >= 0) {
      image.readable = true;
      image.size = {size[1], size[0]};
      const auto count =
          std::size_t{3} * static_cast<std::size_t>(size[0]) * static_cast<std::size_t>(size[1]);
      const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data()) + at;
      image.pixels.assign(begin, begin + count);
      at += count;
    }
    images.push_back(std::move(image));
  }
  return images;
}

// How many bytes differ; a failing test prints this and not the pictures.
inline std::size_t differences(const std::vector<std::uint8_t>& a,
                               const std::vector<std::uint8_t>& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

// A view's pixels, channel after channel for each.
inline std::vector<std::uint8_t> interleave(const ImageView& view) {
  std::vector<std::uint8_t> pixels;
  for (std::int64_t y = 0; y < view.height; ++y) {
    for (std::int64_t x = 0; x < view.width; ++x) {
      for (std::int64_t c = 0; c < view.channels; ++c) pixels.push_back(*view.at(c, y, x));
    }
  }
  return pixels;
}

}  // namespace ddprun::trainer
