// Weights that other programs wrote, for --weights: safetensors, or what torch.save writes (.pth).
#pragma once

#include <filesystem>
#include <string>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/models/image_classifier.h"

namespace ddprun::trainer {

// What weights are loaded for.
enum class WeightsUse {
  Training,
  TrainingNewHead,  // The last layer keeps the values that it has.
  Evaluation,
};

// Loads a file of either kind, or a checkpoint of ours. Names and shapes must agree, except that
// - with a new head those of the last layer need not, nor be there;
// - num_batches_tracked, which files from before PyTorch 0.4.1 lack, may be missing;
// - what Python's DDP and torch.compile() add to names ("module.", "_orig_mod.") is ignored, and
//   AveragedModel's "n_averaged".
// Throws CheckpointError, also for a weight that is no number, or SafetensorsError; the model is
// then as it was.
struct LoadedWeights {
  Metadata told;                  // What the file tells of itself; of torch.save's nothing is read.
  bool left_out_average = false;  // Of a checkpoint with --ema: the weights are those beside it.
};
LoadedWeights load_weights_file(const std::filesystem::path& path, WeightsUse use,
                                torch::nn::Module& model);

// A checkpoint of ours. Throws SafetensorsError, and CheckpointError for a file of torch.save,
// whose weights are for load_weights_file().
Safetensors read_checkpoint_file(const std::filesystem::path& path);

// In what the labels of a file of ours, by its metadata, may mean other things than those of this
// run's data, in words; "" where they do not, or where another program wrote the file.
std::string label_difference(const Metadata& weights, const RunIdentity& identity);

// The same of --mean and --std.
std::string scale_difference(const Metadata& weights, const RunIdentity& identity);

}  // namespace ddprun::trainer
