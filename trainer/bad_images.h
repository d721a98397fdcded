// What is said about images that could not be read, when --on-bad-image skip lets the run go on:
// how many, and the first by name, once for all ranks and in the order of the set. So it does not
// depend on which rank has which part of it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "trainer/training_job.h"

namespace ddprun::trainer {

// Adds those from number `begin` on; returns how many there are. Each counts once, however often it
// was asked for: each image that it stands in for asks anew.
std::size_t note_bad_images(BadImages& images, const std::vector<SkippedImage>& skipped,
                            std::size_t begin = 0);

// Rank 0 tells of all ranks' images, of which `own` are this one's: on standard error, and in
// --metrics. Returns their number, on all ranks. Collective, unless bad images end the run anyway.
// `tell`: false where the same have been told of.
std::int64_t report_bad_images(TrainingJob& job, const BadImages& own, const std::string& pass,
                               bool tell = true);

}  // namespace ddprun::trainer
