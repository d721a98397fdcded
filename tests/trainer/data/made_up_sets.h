// Data sets of a few made-up images, in the files of the real ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/trainer/scratch.h"

namespace ddprun::trainer {

// The prefix of an idx file of MNIST: its magic number, and up to three numbers.
inline std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

inline std::string idx_images(std::uint32_t count, std::uint32_t side) {
  std::string text = big_endian(0x803) + big_endian(count) + big_endian(side) + big_endian(side);
  for (std::uint32_t i = 0; i < count * side * side; ++i) text += static_cast<char>(i);
  return text;
}

inline std::string idx_labels(const std::string& labels) {
  return big_endian(0x801) + big_endian(static_cast<std::uint32_t>(labels.size())) + labels;
}

inline std::string cifar_records(const std::string& labels) {
  std::string bytes;
  for (const char label : labels) bytes += label + std::string(3072, static_cast<char>(label + 1));
  return bytes;
}

// Each part has `images` images, of the first classes in turn.
inline void write_mnist(const std::filesystem::path& folder, bool train, std::uint32_t images) {
  std::string labels;
  for (std::uint32_t i = 0; i < images; ++i) labels += static_cast<char>(i % 10);
  const std::string part = train ? "train" : "t10k";
  write_bytes(folder / (part + "-images-idx3-ubyte"), idx_images(images, 28));
  write_bytes(folder / (part + "-labels-idx1-ubyte"), idx_labels(labels));
}

inline void write_cifar10(const std::filesystem::path& folder, bool train, std::uint32_t images) {
  std::string labels;
  for (std::uint32_t i = 0; i < images; ++i) labels += static_cast<char>(i % 10);
  write_bytes(folder / (train ? "data_batch_1.bin" : "test_batch.bin"), cifar_records(labels));
}

inline void write_stl10(const std::filesystem::path& folder, bool train, std::uint32_t images) {
  std::string pixels, labels;
  for (std::uint32_t i = 0; i < images; ++i) {
    pixels += std::string(27'648, static_cast<char>(i * 30));
    labels += static_cast<char>(1 + i % 10);
  }
  const std::string part = train ? "train" : "test";
  write_bytes(folder / (part + "_X.bin"), pixels);
  write_bytes(folder / (part + "_y.bin"), labels);
}

}  // namespace ddprun::trainer
