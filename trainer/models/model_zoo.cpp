// The tables behind --model: a network more is a line here and one in model_names.h.
#include "trainer/models/model_zoo.h"

#include <map>
#include <stdexcept>

#include "trainer/models/cifar_resnet.h"
#include "trainer/models/conv_net.h"

namespace ddprun::trainer {
namespace {

struct ResNetLayout {
  std::array<std::int64_t, 4> blocks;
  bool bottleneck;
};

const std::map<std::string, ResNetLayout>& resnet_layouts() {
  static const std::map<std::string, ResNetLayout> layouts{
      {"resnet18", {{2, 2, 2, 2}, false}},  {"resnet34", {{3, 4, 6, 3}, false}},
      {"resnet50", {{3, 4, 6, 3}, true}},   {"resnet101", {{3, 4, 23, 3}, true}},
      {"resnet152", {{3, 8, 36, 3}, true}},
  };
  return layouts;
}

const std::map<std::string, std::int64_t>& cifar_resnet_depths() {
  static const std::map<std::string, std::int64_t> depths{
      {"resnet20", 20}, {"resnet32", 32}, {"resnet44", 44}, {"resnet56", 56}, {"resnet110", 110}};
  return depths;
}

}  // namespace

Stem choose_stem(StemChoice choice, std::int64_t image_size) {
  // The ImageNet stem leaves a quarter of each side and the last layer a 32nd: 2 pixels of 64.
  if (choice == StemChoice::Auto) return image_size <= 64 ? Stem::Small : Stem::ImageNet;
  return choice == StemChoice::Small ? Stem::Small : Stem::ImageNet;
}

std::shared_ptr<ImageClassifier> make_model(const ModelRequest& request) {
  if (const auto found = resnet_layouts().find(request.name); found != resnet_layouts().end()) {
    return std::make_shared<ResNet>(ResNetOptions{
        .blocks = found->second.blocks,
        .bottleneck = found->second.bottleneck,
        .stem = choose_stem(request.stem, request.image_size),
        .input_channels = request.input_channels,
        .classes = request.classes,
        .zero_init_residual = request.zero_init_residual,
    });
  }
  const auto& depths = cifar_resnet_depths();
  if (const auto found = depths.find(request.name); found != depths.end()) {
    return std::make_shared<CifarResNet>(found->second, request.input_channels, request.classes,
                                         request.zero_init_residual);
  }
  if (request.name == "convnet") {
    return std::make_shared<ConvNet>(request.input_channels, request.image_size, request.classes);
  }
  if (request.name == "convnet-large") {
    return std::make_shared<LargeConvNet>(request.input_channels, request.image_size,
                                          request.classes);
  }
  std::string known;
  for (const std::string& name : model_names()) known += " " + name;
  throw std::invalid_argument("unknown model '" + request.name + "'; known:" + known);
}

}  // namespace ddprun::trainer
