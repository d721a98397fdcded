// MNIST: 60,000 + 10,000 grey digits of 28x28 pixels in idx files, gzipped or not.
//
// images: magic 0x00000803, count, rows, columns, then count * rows * columns bytes
// labels: magic 0x00000801, count, then one byte 0-9 each            (numbers: 32 bits, big-endian)
// Source of the format: LeCun, Cortes, Burges, "The MNIST database of handwritten digits".
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

struct IdxImages {
  std::int64_t count = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<std::uint8_t> pixels;
};

// `name` is for messages. Both throw DataError.
IdxImages parse_idx_images(std::vector<std::uint8_t> bytes, const std::string& name);
std::vector<std::uint8_t> parse_idx_labels(std::vector<std::uint8_t> bytes,
                                           const std::string& name);

// Reads train-* or t10k-* of `folder`; throws MissingPart and DataError. Also for other sets in
// MNIST's form (Fashion-MNIST, KMNIST): any image size, ten classes.
std::unique_ptr<Dataset> open_mnist(const std::filesystem::path& folder, bool train);

}  // namespace ddprun::trainer
