// Images and labels that fit into memory, as the readers of files fill them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

class MemoryDataset : public PlainDataset {
 public:
  struct Contents {
    ImageShape shape;
    std::int64_t classes = 0;
    Normalization normalization;
    std::string description;
    std::vector<std::uint8_t> pixels;  // labels.size() * shape.bytes(), channel planes
    std::vector<std::uint8_t> labels;
  };

  explicit MemoryDataset(Contents contents) : contents_(std::move(contents)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(contents_.labels.size()); }
  ImageShape shape() const override { return contents_.shape; }
  std::int64_t classes() const override { return contents_.classes; }
  Normalization normalization() const override { return contents_.normalization; }
  std::string description() const override { return contents_.description; }
  std::int64_t label(std::int64_t index) const override {
    return contents_.labels[static_cast<std::size_t>(index)];
  }
  ImageView image(std::int64_t index) const override {
    const ImageShape& shape = contents_.shape;
    return view_of_planes(contents_.pixels.data() + index * shape.bytes(), shape.channels,
                          shape.height, shape.width);
  }

 private:
  Contents contents_;
};

}  // namespace ddprun::trainer
