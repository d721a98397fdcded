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

}  // namespace ddprun::trainer
