// Whether cases on a GPU can run here.
#pragma once

#include <string>

namespace ddprun::worker {

// Why there is no GPU that LibTorch can use; "" where there is one. Opens the CUDA module: to be
// asked before LibTorch is asked about CUDA.
std::string no_gpu();

}  // namespace ddprun::worker
