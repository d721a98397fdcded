// --balance-shards: which ranks have which shards from the next step on (shards/shard_balance.h).
#pragma once

#include "trainer/step_meters.h"
#include "trainer/training_job.h"

namespace ddprun::trainer {

// Between two steps, and not after each: what shards move by is told all ranks, and then the model
// is wrapped anew. Collective. True: job.shares are others, so the batches of the epoch have to be
// as well. Throws worker::CommunicatorError.
bool balance_shards(TrainingJob& job, StepMeters& meters);

}  // namespace ddprun::trainer
