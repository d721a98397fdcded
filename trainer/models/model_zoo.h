// The networks by the names that `--model` takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trainer/models/image_classifier.h"
#include "trainer/models/model_names.h"
#include "trainer/models/resnet.h"

namespace ddprun::trainer {

// Auto: the small stem for images up to 64 pixels.
Stem choose_stem(StemChoice choice, std::int64_t image_size);

struct ModelRequest {
  std::string name;
  StemChoice stem = StemChoice::Auto;  // ResNet-18 .. -152 only.
  std::int64_t input_channels = 3;     // 1 or 3
  std::int64_t image_size = 224;       // Side in pixels.
  std::int64_t classes = 1000;
  bool zero_init_residual = false;  // ResNets: blocks start as their shortcuts.
};

// Throws std::invalid_argument for an unknown name, listing the known ones.
std::shared_ptr<ImageClassifier> make_model(const ModelRequest& request);

}  // namespace ddprun::trainer
