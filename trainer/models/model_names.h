// The names that `--model` takes. No LibTorch, so that the command line needs none.
#pragma once

#include <string>
#include <vector>

namespace ddprun::trainer {

enum class StemChoice { Auto, ImageNet, Small };  // What `--stem` takes.

inline const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{
      "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet20",
      "resnet32", "resnet44", "resnet56", "resnet110", "convnet",   "convnet-large"};
  return names;
}

// Those without batch normalisation and residual blocks.
inline bool is_conv_net(const std::string& model) {
  return model == "convnet" || model == "convnet-large";
}

// The torchvision family, whose first layer depends on the size of images.
inline bool has_stem_choice(const std::string& model) {
  return model == "resnet18" || model == "resnet34" || model == "resnet50" ||
         model == "resnet101" || model == "resnet152";
}

}  // namespace ddprun::trainer
