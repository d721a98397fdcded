// Made-up images for benchmarks and tests: each is a function of (seed, index) alone, so nothing
// is stored and every rank sees the same set.
#pragma once

#include <cstdint>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

struct SyntheticOptions {
  std::int64_t size = 1280;  // Images.
  ImageShape shape{3, 32, 32};
  std::int64_t classes = 1000;
  std::uint64_t seed = 0;
};

// Noise around a brightness that differs by class in each quarter of the image, so a network can
// learn it.
class SyntheticDataset : public Dataset {
 public:
  explicit SyntheticDataset(const SyntheticOptions& options) : options_(options) {}

  std::int64_t size() const override { return options_.size; }
  ImageShape shape() const override { return options_.shape; }
  std::int64_t classes() const override { return options_.classes; }
  Normalization normalization() const override;
  std::string description() const override;
  std::int64_t label(std::int64_t index) const override;
  std::uint64_t list_checksum() const override;  // Of the options, which say it all.
  std::unique_ptr<ImageReader> make_reader() const override;

  // The shape().bytes() bytes of an image, as channel planes.
  void draw(std::int64_t index, std::uint8_t* image) const;

 private:
  SyntheticOptions options_;
};

}  // namespace ddprun::trainer
