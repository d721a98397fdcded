// The making of a training job, up to where its first step begins.
#pragma once

#include <memory>

#include "trainer/models/image_classifier.h"
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

// Without what brings its gradients together, and without gradients. For a job of any state.
void unwrap_model(TrainingJob& job);
// Between two steps, when job.shares are others. Collective.
void wrap_model_anew(TrainingJob& job);

// As the options and the data want it, with weights that are drawn. Throws UsageError.
std::shared_ptr<ImageClassifier> new_model(const TrainingJob& job);
// (N, C, H, W) stay the names of a kernel's sizes; its values lie in memory as N, H, W, C.
void lay_channels_last(ImageClassifier& model);

}  // namespace ddprun::trainer
