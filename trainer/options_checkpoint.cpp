// Options of `train`: checkpoints.
#include "trainer/options_parts.h"

namespace ddprun::trainer {

void add_checkpoint_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Checkpoints");
  app.add_option("--checkpoint-dir", options.checkpoint_dir,
                 "Save a checkpoint here after each epoch; the last two and the best stay");
  add_count(app, "--checkpoint-every", options.checkpoint_every, 1, count_max,
            "Save also every so many steps")
      ->default_str("");
  app.add_option("--resume", options.resume,
                 "auto: go on from the newest checkpoint of --checkpoint-dir, if any; none: start "
                 "anew; or a checkpoint file")
      ->type_name("auto|none|PATH")
      ->capture_default_str();
}

void check_checkpoint_options(const TrainOptions& options) {
  refuse_if(options.checkpoint_every > 0 && options.checkpoint_dir.empty(),
            "--checkpoint-every needs --checkpoint-dir");
  refuse_if(!options.weights.empty() && options.resume != "auto" && options.resume != "none",
            "--weights and --resume PATH contradict each other: a checkpoint brings its weights");
  refuse_if(options.evaluate && options.weights.empty() && options.checkpoint_dir.empty() &&
                (options.resume == "auto" || options.resume == "none"),
            "--evaluate needs something to evaluate: --weights FILE, --resume PATH or "
            "--checkpoint-dir DIR");
}

}  // namespace ddprun::trainer
