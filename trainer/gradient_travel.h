// How this run's gradients travel between workers: --grad-dtype, --power-sgd.
#pragma once

#include <memory>

#include "trainer/options/train_options.h"
#include "trainer/training_job.h"
#include "worker/torch/communication_hook.h"
#include "worker/torch/hooks/power_sgd.h"

namespace ddprun::trainer {

// With --power-sgd and peers; otherwise nothing.
std::shared_ptr<worker::PowerSgd> make_power_sgd(const TrainingJob& job);

// Nothing: as they are.
std::shared_ptr<worker::CommunicationHook> make_communication_hook(const TrainingJob& job);

// Before a checkpoint that all ranks know of, so that it can have that part. Collective.
void share_errors(TrainingJob& job);

// How much is left to travel with --power-sgd, and whether that begins anew.
void tell_compression(TrainingJob& job);

}  // namespace ddprun::trainer
