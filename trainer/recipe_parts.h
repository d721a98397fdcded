// What the recipe adds to a checkpoint: the averaged weights, and by which rule the momentum came.
#pragma once

#include "trainer/checkpoint/checkpoint_part.h"
#include "trainer/optimizer/model_average.h"
#include "trainer/options/train_options.h"

namespace ddprun::trainer {

// "ema": the averaged weights under the model's names. A checkpoint without them starts the
// average anew. Keeps a reference.
CheckpointPart average_part(ModelAverage& average);

// "recipe": the optimizer's name. LARS's momentum contains the learning rate and SGD's does not,
// so that neither can go on with the other's: ForeignCheckpointError. A checkpoint that does not
// say was SGD's.
CheckpointPart optimizer_kind_part(OptimizerKind kind);

}  // namespace ddprun::trainer
