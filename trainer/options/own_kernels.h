// Which parts of a step kernels of our own compute (trainer/kernels/device/), in the place of
// LibTorch's. A core: no sockets, threads or clock.
#pragma once

#include <string>

#include "trainer/options/train_options.h"

namespace ddprun::trainer {

struct OwnKernels {
  bool optimizer = false;
  bool norm = false;    // Batch norms.
  bool pool = false;    // Of the stem.
  bool copies = false;  // Working copies of the weights in 16 bits.
};

// What the options ask for and, where they say nothing, on a GPU all that applies; none on the CPU,
// which has faster ones. What else needs one has it.
OwnKernels own_kernels(const TrainOptions& options, bool gpu);

// Their options: "fused-optimizer fused-norm", say.
std::string own_kernels_text(const OwnKernels& kernels);

}  // namespace ddprun::trainer
