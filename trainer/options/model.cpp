// Options of `train`: the network and its first weights.
#include "trainer/options/parts.h"

namespace ddprun::trainer {

void add_model_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Model");
  app.add_option("--model", options.model,
                 "resnet18/34/50/101/152, resnet20/32/44/56/110, convnet, "
                 "convnet-large")
      ->check(CLI::IsMember(model_names()).description(""))
      ->type_name("NAME")
      ->capture_default_str();
  add_choice<StemChoice>(app, "--stem", options.stem,
                         {{"auto", StemChoice::Auto},
                          {"imagenet", StemChoice::ImageNet},
                          {"small", StemChoice::Small}},
                         "First layer of resnet18 to resnet152: imagenet (7x7, max-pool), small "
                         "(3x3), auto = small up to 64 pixels");
  app.add_option("--weights", options.weights,
                 "Start from the weights of this file: safetensors, or torch.save's (.pth)")
      ->type_name("FILE");
  app.add_flag("--new-head", options.new_head,
               "Leave the last layer as drawn from the seed: for other classes than the file's");
  app.add_flag("--zero-init-residual", options.zero_init_residual,
               "Start residual blocks as their shortcuts: the last BatchNorm's scale is 0");
}

void check_model_options(const TrainOptions& options) {
  refuse_if(options.stem != StemChoice::Auto && !has_stem_choice(options.model),
            "--stem applies to resnet18, 34, 50, 101 and 152 only");
  refuse_if(
      options.zero_init_residual && is_conv_net(options.model),
      "--zero-init-residual has no meaning with --model convnet, which has no residual blocks");
}

}  // namespace ddprun::trainer
