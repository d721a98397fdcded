// Options of `train`: checkpoints.
#include <filesystem>
#include <system_error>

#include "trainer/options/parts.h"

namespace ddprun::trainer {
namespace {

bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

void refuse_folders(const TrainOptions& options) {
  if (is_folder(options.resume) && options.resume != "auto" && options.resume != "none") {
    throw UsageError("--resume " + options.resume +
                     " is a folder: to go on from the newest checkpoint in it give "
                     "--checkpoint-dir " +
                     options.resume + "; else name a file");
  }
  if (is_folder(options.weights)) {
    throw UsageError("--weights " + options.weights.string() +
                     " is a folder: name a file of weights in it");
  }
}

}  // namespace

void add_checkpoint_options(CLI::App& app, TrainOptions& options) {
  app.option_defaults()->group("Checkpoints");
  CLI::Option* const folder =
      app.add_option("--checkpoint-dir", options.checkpoint_dir,
                     "Save a checkpoint here after each epoch; the newest and the best stay")
          ->type_name("DIR");
  add_count(app, "--checkpoint-every", options.checkpoint_every, 1, count_max,
            "Save also every so many steps")
      ->default_str("");
  add_count(app, "--snapshot-every", options.snapshot_every, 1, count_max,
            "Keep a checkpoint also in each node's memory every so many steps, for a restart after "
            "a worker or a node has failed (ddprun --restart-memory)")
      ->default_str("")
      ->needs(folder);
  add_count(app, "--keep-checkpoints", options.keep_checkpoints, 1, count_max,
            "How many of the newest checkpoints stay; never fewer than 2")
      ->needs(folder);
  app.add_option("--resume", options.resume,
                 "auto: go on from the newest checkpoint of --checkpoint-dir, if any; none: start "
                 "anew; or a checkpoint file")
      ->type_name("auto|none|PATH")
      ->capture_default_str();
  app.add_flag("--resume-anyway", options.resume_anyway,
               "Take a checkpoint of other data, another image size or seed; with --evaluate also "
               "--weights of other classes");
}

void check_checkpoint_options(const TrainOptions& options) {
  refuse_if(options.checkpoint_every > 0 && options.checkpoint_dir.empty(),
            "--checkpoint-every needs --checkpoint-dir");
  refuse_if(options.new_head && options.weights.empty(), "--new-head needs --weights");
  refuse_if(!options.weights.empty() && options.resume != "auto" && options.resume != "none",
            "--weights and --resume PATH contradict each other: a checkpoint brings its weights");
  refuse_if(options.evaluate && options.new_head,
            "--evaluate with --new-head would validate a last layer that nobody has trained: to "
            "validate what was trained give --checkpoint-dir DIR without --weights, or --weights "
            "FILE of the trained ones without --new-head");
  refuse_if(options.evaluate && options.weights.empty() && options.checkpoint_dir.empty() &&
                (options.resume == "auto" || options.resume == "none"),
            "--evaluate needs something to evaluate: --weights FILE, --resume PATH or "
            "--checkpoint-dir DIR");
  // Before the peers are met, who would wait for a rank that ends here.
  refuse_folders(options);
}

}  // namespace ddprun::trainer
