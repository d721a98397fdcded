// CIFAR-10, binary version: records of 3073 bytes, no header: label 0-9, then 32x32 red, green and
// blue bytes, row by row. Source of the format: www.cs.toronto.edu/~kriz/cifar.html.
#pragma once

#include <filesystem>
#include <memory>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

// Train: every data_batch_<1-5>.bin that `folder` has (the description says how many images that
// is); test: test_batch.bin, or else test_batch_first1000.bin. Throws MissingPart and DataError.
std::unique_ptr<Dataset> open_cifar10(const std::filesystem::path& folder, bool train);

}  // namespace ddprun::trainer
