// Where training starts: from the seed, from given weights, or from a checkpoint.
#pragma once

#include "trainer/training_job.h"
#include "worker/state_lead.h"

namespace ddprun::trainer {

// Rank 0 loads into the model, the optimizer and the state what --weights and --resume ask for, so
// only rank 0 needs the files. After a restart by the launcher the job's own newest checkpoint
// comes first. Throws CheckpointError or SafetensorsError; the other ranks then lose their peer.
void bring_to_start(TrainingJob& job);

// Gives all ranks the state and parts of the lead, which is rank 0 where nobody held a state before
// (the model is DistributedDataParallel's business), and finds the place in the data for this
// number of workers. Collective.
void share_state(TrainingJob& job, const worker::StateLead& lead);

}  // namespace ddprun::trainer
