// The training loop: the first file to read after run_train.cpp.
#pragma once

#include "trainer/training_error.h"
#include "trainer/training_job.h"

namespace ddprun::trainer {

// From job.state to the last step, with validation and checkpoints on the way, or to the step after
// which the workers have agreed to stop; returns why, or None. Then a checkpoint of that step is
// saved, where there is a folder for it. Collective. Throws TrainingError, DataError,
// CheckpointError and worker::CommunicatorError.
StopReason train(TrainingJob& job);

}  // namespace ddprun::trainer
