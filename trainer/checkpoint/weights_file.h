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
// Throws CheckpointError or SafetensorsError; the model is then as it was. Returns what the file
// tells of itself; of torch.save's nothing is read.
Metadata load_weights_file(const std::filesystem::path& path, WeightsUse use,
                           torch::nn::Module& model);

// In what the labels of a file of ours, by its metadata, may mean other things than those of this
// run's data, in words; "" where they do not, or where another program wrote the file.
std::string label_difference(const Metadata& weights, const RunIdentity& identity);

// The same of --mean and --std.
std::string scale_difference(const Metadata& weights, const RunIdentity& identity);

}  // namespace ddprun::trainer
