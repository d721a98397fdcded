// Do all ranks hold the same weights, buffers and optimizer state, bit for bit?
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/training_error.h"
#include "worker/communicator.h"

namespace ddprun::trainer {

struct TrainingJob;

// By name. An undefined tensor counts as one of its own kind.
using ComparedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

// Compares 64-bit hashes (XXH3) of the tensors' memory over all ranks. Collective, with the same
// names in the same order on every rank; `device` is the communicator's. Waits for the device.
// Throws TrainingError on all ranks alike, naming the ranks that differ from the majority (all of
// them when there is none) and for each the first tensor that does.
void verify_sync(worker::Communicator& communicator, const ComparedTensors& tensors,
                 torch::Device device, std::int64_t step);

// The same for all that a job trains: the model, momentum, and averaged weights. Running
// statistics that --sync-bn does not keep equal are rank 0's from here on, as after a validation.
void verify_sync(TrainingJob& job);

}  // namespace ddprun::trainer
