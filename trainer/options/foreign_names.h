// Options of PyTorch's training scripts (its ImageNet example, torchvision's references) and of
// trainers like them that `train` has by another name: someone who moves over types them first.
#pragma once

#include <string_view>

namespace ddprun::trainer {

struct ForeignName {
  std::string_view elsewhere;  // Without the dashes.
  std::string_view here;       // What to type, without the first two.
};

inline constexpr ForeignName foreign_names[] = {
    {"amp", "precision bf16"},
    {"arch", "model"},
    {"bf16", "precision bf16"},
    {"data-dir", "data"},
    {"data-path", "data"},
    {"fp16", "precision fp16"},
    {"gradient-accumulation-steps", "accumulate"},
    {"learning-rate", "lr"},
    {"lr-scheduler", "lr-schedule"},
    {"lr-step-size", "lr-step-epochs"},
    {"lr-warmup-epochs", "warmup-epochs"},
    {"max-epochs", "epochs"},
    {"max-grad-norm", "clip-grad-norm"},
    {"max-steps", "steps"},
    {"model-ema", "ema"},
    {"num-epochs", "epochs"},
    {"num-workers", "workers"},
    {"output-dir", "checkpoint-dir"},
    {"pretrained", "weights"},
    {"test-only", "evaluate"},
    {"train-batch-size", "batch-size"},
    {"train-crop-size", "image-size"},
    {"wd", "weight-decay"},
};

}  // namespace ddprun::trainer
