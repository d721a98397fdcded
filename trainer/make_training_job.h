// The making of a training job, up to where its first step begins.
#pragma once

#include "trainer/training_job.h"

namespace ddprun::trainer {

// Of `job`, which is empty, what needs neither rank nor peers: the data sets are open, and the
// model is drawn. What make_training_job() does first where this was not called. Throws UsageError
// and DataError.
void prepare_training_job(TrainingJob& job, const TrainOptions& options);

// Into a `job` that is empty or prepared, which is the caller's: where this throws, the
// communicator is still there to tell the peers why. Collective. Throws UsageError, DataError,
// CheckpointError, SafetensorsError and worker::CommunicatorError.
void make_training_job(TrainingJob& job, const TrainOptions& options, const worker::WorkerEnv& env);

}  // namespace ddprun::trainer
