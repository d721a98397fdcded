// A set of labelled images held as bytes, as the loader sees it.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddprun::trainer {

// A file that is missing, truncated or not what its name says. The message names the file, the
// offset where one matters, what was found and what was expected.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct ImageShape {
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t bytes() const { return channels * height * width; }
};

// Subtracted from and divided into a pixel scaled to 0 .. 1, per channel.
struct Normalization {
  std::vector<float> mean;
  std::vector<float> deviation;
};

// Immutable after construction, so any number of threads may read at the same time.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  virtual ImageShape shape() const = 0;
  virtual std::int64_t classes() const = 0;
  virtual Normalization normalization() const = 0;
  virtual std::string description() const = 0;  // "MNIST train: 60000 images ... from data/mnist"

  // Copies the images of `indices` (each 0 .. size()-1) one after the other to `pixels`
  // (indices.size() * shape().bytes() bytes: channel planes, row by row) and their labels
  // (0 .. classes()-1) to `labels`.
  virtual void read(std::span<const std::int64_t> indices, std::uint8_t* pixels,
                    std::int64_t* labels) const = 0;
};

}  // namespace ddprun::trainer
