// Which parameters of a model are weights of layers, and which only shift and scale.
#pragma once

#include <set>
#include <string>

#include "trainer/optimizer/decay_exclusion.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// The full names of the parameters that the exclusion speaks of.
std::set<std::string> excluded_parameters(const torch::nn::Module& model,
                                          const DecayExclusion& exclusion);

}  // namespace ddprun::trainer
