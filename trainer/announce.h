// What a run says of itself before its first step: on the console, in --metrics, in TensorBoard.
#pragma once

#include "trainer/training_job.h"

namespace ddprun::trainer {

void announce(TrainingJob& job);

}  // namespace ddprun::trainer
