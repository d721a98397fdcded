// The data sets by the options that choose them, and what is done to their images.
#pragma once

#include <memory>

#include "trainer/data/dataset.h"
#include "trainer/data/sample_maker.h"
#include "trainer/options/train_options.h"

namespace ddprun::trainer {

// Throws DataError; where the images are missing it says what else the folder has, and what that is
// good for. The synthetic validation set has other images than the training set.
std::unique_ptr<Dataset> open_dataset(const TrainOptions& options, bool train);

// The same with UsageError: data that cannot be opened was given wrong, unless it is an
// UnreadDataError; and what cannot be read of it later is another matter.
std::unique_ptr<Dataset> open_given(const TrainOptions& options, bool train);

// The side that images have in training: --image-size, or the data set's own, or 224. Throws
// UsageError for images that are not square.
std::int64_t image_size_of(const TrainOptions& options, const Dataset& dataset);

// How images of `dataset` become samples of `image_size`: in training with --augment's changes, in
// validation without. Throws UsageError for options that do not fit the data.
SampleOptions sample_options(const TrainOptions& options, const Dataset& dataset,
                             std::int64_t image_size, bool train);

}  // namespace ddprun::trainer
