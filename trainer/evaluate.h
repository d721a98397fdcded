// Accuracy on the validation set, shared by all ranks.
#pragma once

#include <optional>

#include "trainer/report/reporter.h"
#include "trainer/training_job.h"

namespace ddprun::trainer {

// Counts every image exactly once, over all ranks, with rank 0's running statistics; all ranks get
// the same result: nothing when they have agreed to stop on the way (job.stop). Collective. The
// model is in training mode afterwards. `again`: the set was just read, and what of it cannot be
// was told of. Which accuracy is the best is for validate() to say.
std::optional<ValidationReport> evaluate(TrainingJob& job, bool again = false);

struct Validation {
  ValidationReport weights;                  // As trained.
  std::optional<ValidationReport> averaged;  // --ema.
  bool best = false;                         // No validation before was better.
};

// Evaluates and reports. With --ema both the weights and their average are evaluated, and the
// average's accuracy is the one that counts. In training what has the best one so far is kept for
// the next checkpoint. in_epoch: the epoch's line tells of it. Nothing: stopped on the way.
// Collective.
std::optional<Validation> validate(TrainingJob& job, bool in_epoch);

}  // namespace ddprun::trainer
