// A data set that lies whole in the memory of the device: whether it can, its bytes, and which
// image becomes which sample how. The choice is plan_sample()'s, so that an epoch has the same
// crops and flips as through the loader. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/data/augment.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sample_maker.h"
#include "trainer/kernels/device/gather_kernel.h"

namespace ddprun::trainer {

// Why the set cannot; "" when it can. `bytes_max`: what its images may take.
std::string reason_against_residence(const Dataset& dataset, const TransformOptions& transform,
                                     std::int64_t bytes_max);

// All images as channel planes, row by row, one after the other.
std::vector<std::uint8_t> resident_pixels(const Dataset& dataset);
std::vector<std::int64_t> resident_labels(const Dataset& dataset);

// Of the indices in their order, for the epoch that `options` names.
std::vector<ResidentSample> resident_samples(const Dataset& dataset, const SampleOptions& options,
                                             const std::vector<std::int64_t>& indices);

}  // namespace ddprun::trainer
