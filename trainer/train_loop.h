// The training loop.
#pragma once

#include "trainer/training_error.h"
#include "trainer/training_job.h"

namespace ddprun::trainer {

// From job.state to the last step, with validation and checkpoints on the way. Collective. Throws
// TrainingError, DataError, CheckpointError and worker::CommunicatorError.
void train(TrainingJob& job);

}  // namespace ddprun::trainer
