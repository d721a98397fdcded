// What PowerSGD knows of the steps before, in a checkpoint.
#pragma once

#include "trainer/checkpoint/checkpoint_part.h"
#include "worker/torch/hooks/power_sgd.h"

namespace ddprun::trainer {

// "power_sgd": what has not travelled yet, under the names of the model's parameters, and how many
// steps were done. Nothing where a save comes without PowerSgd::share_errors() before it. Keeps a
// reference to `power`.
CheckpointPart power_sgd_part(worker::PowerSgd& power, const torch::nn::Module& model);

}  // namespace ddprun::trainer
