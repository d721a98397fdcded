// What a spare of train (ddprun --spares) does before it has a rank.
#pragma once

#include "trainer/training_job.h"

namespace ddprun::trainer {

// Of this spare's node, as its launcher says; 1 where it does not.
int workers_of_node();

// Prepares `job`, and runs forward and backward once on images of zeros, on the CPU, so that
// libraries are loaded and their kernels compiled for these shapes. Never throws: what cannot be
// done now is done, and its error reported, when there is a rank; `job` is then left empty.
void warm_up(TrainingJob& job, const TrainOptions& options);

}  // namespace ddprun::trainer
