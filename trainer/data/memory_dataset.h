// Images and labels that fit into memory, as the readers of files fill them.
#pragma once

#include <string>
#include <vector>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

class MemoryDataset : public Dataset {
 public:
  struct Contents {
    ImageShape shape;
    std::int64_t classes = 0;
    Normalization normalization;
    std::string description;
    std::vector<std::uint8_t> pixels;  // labels.size() * shape.bytes()
    std::vector<std::uint8_t> labels;
  };

  explicit MemoryDataset(Contents contents) : contents_(std::move(contents)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(contents_.labels.size()); }
  ImageShape shape() const override { return contents_.shape; }
  std::int64_t classes() const override { return contents_.classes; }
  Normalization normalization() const override { return contents_.normalization; }
  std::string description() const override { return contents_.description; }
  void read(std::span<const std::int64_t> indices, std::uint8_t* pixels,
            std::int64_t* labels) const override;

 private:
  Contents contents_;
};

}  // namespace ddprun::trainer
