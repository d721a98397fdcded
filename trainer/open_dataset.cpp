// What the options leave open about data is settled here, as PyTorch's examples do it.
#include "trainer/open_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "trainer/data/sets/cifar10.h"
#include "trainer/data/sets/csv_list.h"
#include "trainer/data/sets/image_folder.h"
#include "trainer/data/sets/mnist.h"
#include "trainer/data/sets/stl10.h"
#include "trainer/data/sets/synthetic.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t synthetic_side = 32;
constexpr std::int64_t side_of_files = 224;  // Of images that differ in size, as for ImageNet.
constexpr std::int64_t synthetic_validation_share = 10;  // One validation image per so many.

std::unique_ptr<Dataset> open_synthetic(const TrainOptions& options, bool train) {
  const std::int64_t side = options.image_size == 0 ? synthetic_side : options.image_size;
  const std::int64_t size =
      train ? options.synthetic_images
            : std::max<std::int64_t>(1, options.synthetic_images / synthetic_validation_share);
  return std::make_unique<SyntheticDataset>(
      SyntheticOptions{.size = size,
                       .shape = {3, side, side},
                       .classes = options.synthetic_classes,
                       .seed = 2 * options.seed + (train ? 0 : 1)});
}

std::unique_ptr<Dataset> open_kind(const TrainOptions& options, bool train) {
  const std::filesystem::path data = data_path(options);
  switch (options.dataset) {
    case DatasetKind::Mnist:
      return open_mnist(data, train);
    case DatasetKind::Cifar10:
      return open_cifar10(data, train);
    case DatasetKind::Stl10:
      return open_stl10(data, train);
    case DatasetKind::ImageFolder:
      return open_image_folder(data, options.validation_data, train);
    case DatasetKind::Csv:
      return open_csv(data, options.validation_data, train);
    case DatasetKind::Synthetic:
      return open_synthetic(options, train);
  }
  return nullptr;
}

// What this user may not look into is not a part that is missing.
std::unique_ptr<Dataset> open_part(const TrainOptions& options, bool train) {
  try {
    return open_kind(options, train);
  } catch (const std::filesystem::filesystem_error& error) {
    throw_unread("cannot look at " + error.path1().string(), error.code().value(),
                 "; --data takes a place that this user can read");
  }
}

// Of the other part, for a message; "" when there is nothing either.
std::string what_there_is(const TrainOptions& options, bool train) {
  std::string other;
  try {
    other = open_part(options, !train)->description();
  } catch (const DataError&) {
    return "";
  }
  if (train) {
    return fmt::format(". There is {}: enough for --evaluate, not for training", other);
  }
  return fmt::format(". There is {}: {}", other,
                     options.evaluate ? "not what --evaluate counts"
                                      : "with --no-validation, enough for training");
}

// Before the middle is cut out; images of one size are not cut.
std::int64_t resize_side(const TrainOptions& options, std::int64_t image_size, bool train) {
  if (!train && options.val_resize_size != 0) return options.val_resize_size;
  // 256 for 224, in this proportion for other sizes.
  return lists_files(options.dataset) ? (image_size * 8 + 3) / 7 : image_size;
}

}  // namespace

std::unique_ptr<Dataset> open_dataset(const TrainOptions& options, bool train) {
  try {
    return open_part(options, train);
  } catch (const MissingPart& missing) {
    throw DataError(missing.what() + what_there_is(options, train));
  }
}

std::unique_ptr<Dataset> open_given(const TrainOptions& options, bool train) {
  try {
    return open_dataset(options, train);
  } catch (const UnreadDataError&) {
    throw;  // Nothing was given wrong.
  } catch (const DataError& error) {
    throw UsageError(error.what());
  }
}

std::int64_t image_size_of(const TrainOptions& options, const Dataset& dataset) {
  const ImageShape shape = dataset.shape();
  if (options.image_size != 0) return options.image_size;
  if (shape.height == 0) return side_of_files;
  if (shape.height != shape.width) {
    throw UsageError(fmt::format("images of {}x{} pixels are not square: give --image-size",
                                 shape.height, shape.width));
  }
  return shape.height;
}

SampleOptions sample_options(const TrainOptions& options, const Dataset& dataset,
                             std::int64_t image_size, bool train) {
  const auto channels = static_cast<std::size_t>(dataset.shape().channels);
  SampleOptions sample{
      .transform = {.side = image_size, .resize_side = resize_side(options, image_size, train)},
      .normalization = dataset.normalization(),
      .seed = options.seed};
  if (sample.transform.resize_side < image_size) {
    throw UsageError(
        fmt::format("--val-resize-size {} is smaller than the images: give at least {}",
                    sample.transform.resize_side, image_size));
  }
  if (!options.mean.empty()) {
    if (options.mean.size() != channels) {
      throw UsageError(
          fmt::format("--mean and --std have {} numbers, but need one for each of {} channels",
                      options.mean.size(), channels));
    }
    sample.normalization = {options.mean, options.deviation};
  }
  if (train) sample.transform.augment = augment_of(options);
  if (options.skip_bad_images) {
    sample.on_bad_image = train ? BadImagePolicy::Replace : BadImagePolicy::Omit;
  }
  return sample;
}

}  // namespace ddprun::trainer
