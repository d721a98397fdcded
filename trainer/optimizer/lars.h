// Layer-wise adaptive rates, for batches so large that one rate does not suit all layers.
//
//   u = rate * trust * |w| / (|g| + decay * |w|) * (g + decay * w);   v <- momentum * v + u;
//   w <- w - v
//
// You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks" (2017), algorithm 1: the
// rate is part of what the momentum sums up. A layer whose weights or gradients are all zero
// takes the plain rate, as in MLPerf's reference.
#pragma once

#include <vector>

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// u for each parameter (weights or biases of one layer), in new memory with the gradient's strides.
// The host does not wait for the device.
std::vector<torch::Tensor> lars_updates(const std::vector<torch::Tensor>& parameters,
                                        const std::vector<torch::Tensor>& gradients, double rate,
                                        double trust, double decay);

// The same without adaptation, for what LARS leaves out: rate * (g + decay * w).
std::vector<torch::Tensor> plain_updates(const std::vector<torch::Tensor>& parameters,
                                         const std::vector<torch::Tensor>& gradients, double rate,
                                         double decay);

}  // namespace ddprun::trainer
