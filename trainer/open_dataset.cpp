// See open_dataset.h.
#include "trainer/open_dataset.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/data/cifar10.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t synthetic_side = 32;
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

}  // namespace

std::string name_of(DatasetKind kind) {
  switch (kind) {
    case DatasetKind::Mnist:
      return "mnist";
    case DatasetKind::Cifar10:
      return "cifar10";
    case DatasetKind::Synthetic:
      return "synthetic";
  }
  return "";
}

std::unique_ptr<Dataset> open_dataset(const TrainOptions& options, bool train) {
  switch (options.dataset) {
    case DatasetKind::Mnist:
      return open_mnist(options.data, train);
    case DatasetKind::Cifar10:
      return open_cifar10(options.data, train);
    case DatasetKind::Synthetic:
      return open_synthetic(options, train);
  }
  return nullptr;
}

std::int64_t image_size_of(const TrainOptions& options, const Dataset& dataset) {
  const ImageShape shape = dataset.shape();
  if (options.image_size != 0) return options.image_size;
  if (shape.height != shape.width) {
    throw DataError(fmt::format("images of {}x{} pixels are not square: give --image-size",
                                shape.height, shape.width));
  }
  return shape.height;
}

}  // namespace ddprun::trainer
