// The training loop.
#pragma once

#include "trainer/training_job.h"

namespace ddprun::trainer {

// Training that cannot go on, such as a loss that is not a number.
class TrainingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// From job.state to the last step, with validation and checkpoints on the way. Collective. Throws
// TrainingError, DataError, CheckpointError and worker::CommunicatorError.
void train(TrainingJob& job);

}  // namespace ddprun::trainer
