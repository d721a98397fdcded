// By module and not by shape: a bias and a batch norm's scale are both rows of numbers.
#include "trainer/optimizer/parameter_kinds.h"

namespace ddprun::trainer {
namespace {

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm3dImpl>() != nullptr;
}

}  // namespace

std::set<std::string> excluded_parameters(const torch::nn::Module& model,
                                          const DecayExclusion& exclusion) {
  std::set<std::string> names;
  for (const auto& module : model.named_modules()) {
    const bool whole = exclusion.batch_norm && is_batch_norm(*module.value());
    for (const auto& parameter : module.value()->named_parameters(/*recurse=*/false)) {
      if (!whole && !(exclusion.bias && parameter.key() == "bias")) continue;
      names.insert(module.key().empty() ? parameter.key() : module.key() + "." + parameter.key());
    }
  }
  return names;
}

SgdOptions sgd_options(const TrainOptions& options, const torch::nn::Module& model) {
  SgdOptions result{.momentum = options.momentum,
                    .weight_decay = options.weight_decay,
                    .nesterov = options.nesterov};
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
