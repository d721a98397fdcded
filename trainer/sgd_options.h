// From the options to the settings of the optimizer, which knows nothing of command lines.
#pragma once

#include "trainer/optimizer/sgd.h"
#include "trainer/options/train_options.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// The optimizer of --optimizer, --momentum, --weight-decay and so on, for this model.
SgdOptions sgd_options(const TrainOptions& options, const torch::nn::Module& model);

}  // namespace ddprun::trainer
