// A set of labelled images, as the loader sees it. No LibTorch here: a data set gives bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/images/image_view.h"
#include "trainer/data_error.h"

namespace ddprun::trainer {

// A folder without the training or the test images of its set; those of the other part may be
// there.
class MissingPart : public DataError {
 public:
  using DataError::DataError;
};

// Height and width are 0 where the images of a set differ in size.
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

// Reads images of a data set, for one thread. Holds what can be used again from image to image.
class ImageReader {
 public:
  virtual ~ImageReader() = default;

  // Makes image `index` (0 .. size()-1) the current one. Throws ImageError.
  virtual ImageSize open(std::int64_t index) = 0;

  // The current image; once after each open(). The pixels are valid until the next open(). Throws
  // ImageError, or DataError where what holds the other images, too, cannot be read any more.
  virtual DecodedImage decode(const ImageRegion& region) = 0;

  // The current image's file where another decoder may read it in the place of decode(): see
  // FileDecoder::is_plain_jpeg(); else empty. Valid until the next open().
  virtual std::span<const std::uint8_t> plain_jpeg() const { return {}; }
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

  // By label; empty where classes have numbers only.
  virtual std::vector<std::string> class_names() const { return {}; }

  // Of which image is which and has which label, as far as that can be told without reading images.
  // Another value says that it is another set; here: of all labels.
  virtual std::uint64_t list_checksum() const;

  // Where a person finds image `index`; empty where images have numbers only.
  virtual std::string name(std::int64_t /*index*/) const { return {}; }

  virtual std::int64_t label(std::int64_t index) const = 0;      // 0 .. classes()-1
  virtual std::unique_ptr<ImageReader> make_reader() const = 0;  // Must not outlive the set.
};

// A set whose images all have shape() and can be read at any time, at no cost.
class PlainDataset : public Dataset {
 public:
  virtual ImageView image(std::int64_t index) const = 0;
  std::unique_ptr<ImageReader> make_reader() const override;
};

// The whole image as channel planes, row by row: for tests and tools.
std::vector<std::uint8_t> read_planes(const Dataset& dataset, std::int64_t index);

}  // namespace ddprun::trainer
