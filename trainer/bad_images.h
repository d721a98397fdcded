// What is said about images that could not be read, when --on-bad-image skip lets the run go on.
#pragma once

#include <vector>

#include "trainer/data/sample_maker.h"
#include "trainer/training_job.h"

namespace ddprun::trainer {

// The lines about one rank's images: how many, and the first ones by name.
std::string bad_images_text(const std::vector<SkippedImage>& skipped);

// Every rank names its own images on standard error; rank 0 tells the number of all. Returns that.
// Collective, unless bad images end the run anyway.
std::int64_t report_bad_images(TrainingJob& job, const std::vector<SkippedImage>& skipped,
                               const std::string& pass);

}  // namespace ddprun::trainer
