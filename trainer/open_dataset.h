// The data sets by the options that choose them.
#pragma once

#include <memory>

#include "trainer/data/dataset.h"
#include "trainer/options.h"

namespace ddprun::trainer {

// "mnist", "cifar10" or "synthetic".
std::string name_of(DatasetKind kind);

// Throws DataError. The synthetic validation set has other images than the training set.
std::unique_ptr<Dataset> open_dataset(const TrainOptions& options, bool train);

// The side that images have in training: --image-size, or the data set's own.
std::int64_t image_size_of(const TrainOptions& options, const Dataset& dataset);

}  // namespace ddprun::trainer
