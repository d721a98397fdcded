// What all workers of a run must have alike: each trains on its own share, and a worker with
// another batch size or learning rate spoils the result without an error. The settings of every
// worker as text, and the difference in words.
//
// Not among them: what is this worker's own (ranks, addresses, devices, threads), what only rank 0
// uses (weights, checkpoints), paths, and what is only shown.
#pragma once

#include <string>
#include <vector>

#include "trainer/options/own_kernels.h"
#include "trainer/options/train_options.h"

namespace ddprun::trainer {

// What the options came to on this worker, with its data.
struct RunFacts {
  std::string model;        // "resnet18, small stem"
  std::string image;        // "3x32x32"
  std::string preparation;  // Of training images: "32x32 pixels, random flip"
  std::string validation_preparation;
  std::vector<float> mean, deviation;
  std::int64_t classes = 0;
  std::string class_names;  // By label, with a comma between them; "": they have numbers only.
  // Checksums over names and labels; "": there is no such set.
  std::string training_list, validation_list;
  std::int64_t training_images = 0;  // 0 with --evaluate.
  std::int64_t validation_images = 0;
  std::int64_t micro_batch_size = 0;
  OwnKernels kernels;
};

// One setting a line, "NAME<tab>VALUE", in a fixed order. `options`: with the learning rate of this
// run (resolve_learning_rate()). Settings that come to the same are the same, given or not.
std::string settings_text(const TrainOptions& options, const RunFacts& facts);

// The first rank whose settings differ from rank 0's, and in what; "" when all agree. Element r of
// `texts` is rank r's.
std::string settings_difference(const std::vector<std::string>& texts);

}  // namespace ddprun::trainer
