// What the recipe adds to a checkpoint: the averaged weights, by which rule the momentum came, how
// many shards a step has, and the loss scale of fp16.
#pragma once

#include "trainer/checkpoint/checkpoint_part.h"
#include "trainer/optimizer/loss_scaler.h"
#include "trainer/optimizer/model_average.h"
#include "trainer/options/train_options.h"

namespace ddprun::trainer {

inline constexpr const char* average_part_name = "ema";

// "ema": the averaged weights under the model's names. A checkpoint without them starts the
// average anew. Keeps a reference.
CheckpointPart average_part(ModelAverage& average);

// "recipe": the optimizer's name. LARS's momentum contains the learning rate and SGD's does not,
// so that neither can go on with the other's: ForeignCheckpointError. A checkpoint that does not
// say was SGD's.
CheckpointPart optimizer_kind_part(OptimizerKind kind);

// "shards": into how many a step is divided. Another number would train other weights:
// ForeignCheckpointError, unless `anyway`. A checkpoint that does not say had none.
CheckpointPart shards_part(int shards, bool anyway);

// "loss_scaler": the scale and what it has seen. Keeps a reference.
// `catch_up` and `restored`: Precision's, where the scaler's state is elsewhere meanwhile.
CheckpointPart loss_scaler_part(LossScaler& scaler, std::function<void()> catch_up = {},
                                std::function<void()> restored = {});

}  // namespace ddprun::trainer
