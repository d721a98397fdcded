// A state that nothing can be trained from: it must reach neither a checkpoint nor another worker.
#pragma once

#include "trainer/optimizer/loss_guard.h"
#include "trainer/step_data.h"
#include "trainer/training_job.h"

namespace ddprun::trainer {

// Of the step that job.state has just come to. Throws BadLossError when the loss of this rank is no
// number, and with --shards also CommunicatorError when another's is: then no rank holds a state
// any more, and no node a snapshot. Collective in that case alone.
void check_loss(TrainingJob& job, LossGuard& guard, const StepOutput& output,
                const LossOrigin& origin);

// No weight and no running statistic is infinite or no number. Momentum and averages need no look:
// what is in them has been in the weights. One pass over memory.
bool is_finite(const ImageClassifier& model);

}  // namespace ddprun::trainer
