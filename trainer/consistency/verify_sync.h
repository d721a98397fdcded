// Do all ranks hold the same weights, buffers and optimizer state, bit for bit?
//
// The running statistics of batch normalisation are an exception. Each rank's follow its own
// batches, under PyTorch's DistributedDataParallel as under ours; what counts is rank 0's, which
// the others take over before they are read (PyTorch: before each forward). Right after a step they
// differ, and nothing is wrong. With SyncBatchNorm they follow all batches and must be equal.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/optimizer/model_average.h"
#include "trainer/optimizer/sgd.h"
#include "trainer/training_error.h"
#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// By name. An undefined tensor counts as one of its own kind.
using ComparedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

// What is the same on all ranks by the rules of training: parameters, buffers, momentum, averaged
// weights (`average` may be null). Running statistics only if asked for.
ComparedTensors tensors_to_compare(const torch::nn::Module& model, const Sgd& optimizer,
                                   const ModelAverage* average, bool running_statistics);

// Compares 64-bit hashes (XXH3) of the tensors' memory over all ranks. Collective, with the same
// names in the same order on every rank; `device` is the communicator's. Waits for the device.
// Throws TrainingError on all ranks alike, naming the ranks that differ from the majority (all of
// them when there is none) and for each the first tensor that does.
void verify_sync(worker::Communicator& communicator, const ComparedTensors& tensors,
                 torch::Device device, std::int64_t step);

// Whether a buffer of that name is one that follows the batches of its own rank, as above.
bool is_running_statistic(const std::string& name);

// Of a model with batch normalisation.
bool has_running_statistics(const torch::nn::Module& model);

}  // namespace ddprun::trainer
