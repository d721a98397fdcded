// The making of a training job, up to where its first step begins.
#pragma once

#include <memory>

#include "trainer/training_job.h"

namespace ddprun::trainer {

// Collective. Throws UsageError, DataError, CheckpointError, SafetensorsError and
// worker::CommunicatorError.
std::unique_ptr<TrainingJob> make_training_job(const TrainOptions& options,
                                               const worker::WorkerEnv& env);

}  // namespace ddprun::trainer
