// How this run's gradients travel between workers: --grad-dtype, --power-sgd.
#pragma once

#include <memory>

#include "trainer/options/train_options.h"
#include "trainer/training_job.h"
#include "worker/torch/communication_hook.h"

namespace ddprun::trainer {

// Nothing: as they are.
std::shared_ptr<worker::CommunicationHook> make_communication_hook(const TrainOptions& options);

// How much is left to travel with --power-sgd.
void tell_compression(TrainingJob& job);

}  // namespace ddprun::trainer
