// Which parameters of a model are weights of layers, and which only shift and scale.
#pragma once

#include <set>
#include <string>

#include "trainer/optimizer/sgd.h"
#include "trainer/options/train_options.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// The full names of the parameters that the exclusion speaks of.
std::set<std::string> excluded_parameters(const torch::nn::Module& model,
                                          const DecayExclusion& exclusion);

// The optimizer of --optimizer, --momentum, --weight-decay and so on, for this model.
SgdOptions sgd_options(const TrainOptions& options, const torch::nn::Module& model);

}  // namespace ddprun::trainer
