// From the options to the settings of the optimizer, which knows nothing of command lines.
#pragma once

#include "trainer/optimizer/sgd.h"
#include "trainer/options/train_options.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// The optimizer of --optimizer, --momentum, --weight-decay and so on, for this model. `own_kernel`:
// OwnKernels::optimizer.
SgdOptions sgd_options(const TrainOptions& options, const torch::nn::Module& model,
                       bool own_kernel);

}  // namespace ddprun::trainer
