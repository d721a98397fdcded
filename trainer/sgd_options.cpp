// What the rule leaves alone, by the names that this model has for it.
#include "trainer/sgd_options.h"

#include "trainer/optimizer/parameter_kinds.h"

namespace ddprun::trainer {

SgdOptions sgd_options(const TrainOptions& options, const torch::nn::Module& model,
                       bool own_kernel) {
  SgdOptions result{.momentum = options.momentum,
                    .weight_decay = options.weight_decay,
                    .nesterov = options.nesterov,
                    .own_kernel = own_kernel};
  if (options.optimizer == OptimizerKind::Lars) {
    // A scale or shift has no direction that its length could be compared with.
    const DecayExclusion both{.batch_norm = true, .bias = true};
    result.lars =
        LarsOptions{.trust = options.lars_trust, .not_adapted = excluded_parameters(model, both)};
  }
  result.no_decay = excluded_parameters(model, decay_exclusion_of(options));
  return result;
}

}  // namespace ddprun::trainer
