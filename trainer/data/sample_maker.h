// One sample of a data set -> the values of its place in a batch: read, cut, resize, mirror,
// normalise. No LibTorch here. A core: no sockets, threads or clock.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/augment.h"
#include "trainer/data/dataset.h"
#include "trainer/data/images/resample.h"
#include "trainer/data/normalize.h"

namespace ddprun::trainer {

// What is done about an image that cannot be read.
enum class BadImagePolicy {
  Fail,     // The run ends with an error that names it.
  Replace,  // The next readable image of the set takes its place: a batch keeps its size.
  Omit,     // The batch gets smaller: each image counts once, in a validation.
};

struct SampleOptions {
  TransformOptions transform;
  Normalization normalization;
  std::uint64_t seed = 0;  // With the epoch and the sample: what is drawn at random.
  std::int64_t epoch = 0;
  BadImagePolicy on_bad_image = BadImagePolicy::Fail;
  bool channels_last = false;  // Order of a sample's values.
  bool bytes = false;          // A sample stays bytes; who gets it normalises.
};

struct SkippedImage {
  std::int64_t index = 0;
  std::string reason;  // Names the file.
};

// Each once, by its number in the set: why it cannot be read.
using BadImages = std::map<std::int64_t, std::string>;

struct Sample {
  std::int64_t index = 0;  // Of the image that was read.
  std::int64_t label = 0;
};

// Offers a file, which is valid during the call, to who decodes JPEG elsewhere. True: it is taken.
using TakeJpeg =
    std::function<bool(std::span<const std::uint8_t> file, ImageSize size, const SamplePlan& plan)>;

// For one thread; the data set must outlive it.
class SampleMaker {
 public:
  SampleMaker(const Dataset& dataset, const SampleOptions& options);

  // Writes channels * side * side values to `out`, floats or, with SampleOptions::bytes, bytes;
  // what was passed over on the way is added to `skipped`. Nothing is returned, and nothing was
  // written, for an image to be omitted. Throws DataError. The same index gives the same values,
  // whatever was made before. `take` is offered each image of which the data set gives the file
  // (ImageReader::plain_jpeg()); what it takes is not written.
  std::optional<Sample> make(std::int64_t index, void* out, std::vector<SkippedImage>& skipped,
                             const TakeJpeg& take = {});

 private:
  void write(std::int64_t image, std::int64_t key_index, void* out, const TakeJpeg& take);

  const Dataset& dataset_;
  const SampleOptions options_;
  const NormalizationTable table_;
  const std::unique_ptr<ImageReader> reader_;
  Resampler resampler_;
};

}  // namespace ddprun::trainer
