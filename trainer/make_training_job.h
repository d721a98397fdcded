// The making of a training job, up to where its first step begins.
#pragma once

#include "trainer/training_job.h"

namespace ddprun::trainer {

// Into an empty `job`, which is the caller's: where this throws, the communicator is still there to
// tell the peers why. Collective. Throws UsageError, DataError, CheckpointError, SafetensorsError
// and worker::CommunicatorError.
void make_training_job(TrainingJob& job, const TrainOptions& options, const worker::WorkerEnv& env);

}  // namespace ddprun::trainer
