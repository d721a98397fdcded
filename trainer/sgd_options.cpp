// Defaults that depend on the rule: what LARS leaves alone, and what --no-decay means where it is
// not given.
#include "trainer/sgd_options.h"

#include "trainer/optimizer/parameter_kinds.h"

namespace ddprun::trainer {

SgdOptions sgd_options(const TrainOptions& options, const torch::nn::Module& model,
                       bool own_kernel) {
  SgdOptions result{.momentum = options.momentum,
                    .weight_decay = options.weight_decay,
                    .nesterov = options.nesterov,
                    .own_kernel = own_kernel};
  // A scale or shift has no direction that its length could be compared with, so LARS leaves both
  // kinds alone; its users leave them without decay too.
  const DecayExclusion both{.batch_norm = true, .bias = true};
  const bool lars = options.optimizer == OptimizerKind::Lars;
  if (lars) {
    result.lars =
        LarsOptions{.trust = options.lars_trust, .not_adapted = excluded_parameters(model, both)};
  }
  result.no_decay =
      excluded_parameters(model, options.no_decay.value_or(lars ? both : DecayExclusion{}));
  return result;
}

}  // namespace ddprun::trainer
