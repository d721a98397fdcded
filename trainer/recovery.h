// Recovery in place (--recover): what a worker gives up and what it keeps when its attempt is over,
// and how those that kept their state and those that have none come to the same one.
#pragma once

#include "trainer/training_job.h"
#include "worker/state_lead.h"

namespace ddprun::trainer {

// The job without what belongs to the attempt: peers, the duties of a rank, and all that a step
// left half done. It keeps its data sets, and model, optimizer and position, if they were ever
// whole; make_training_job() makes the rest again. Waits for the checkpoint that is being written.
void leave_attempt(TrainingJob& job);

// Waits for a rank in another attempt (worker::Membership). Weights that are infinite or no numbers
// are given up meanwhile, with a warning. False: there is none.
bool next_rank(TrainingJob& job, const worker::Membership::GiveUp& give_up);

// Whether this worker, without its peers, holds what belongs into the folder of checkpoints.
bool could_save_alone(const TrainingJob& job);

// Leaves the attempt and saves that, as a worker that is told to end while it waits for others: the
// state may be in its memory alone. Not where a checkpoint of this run is as far, which another
// one's may be by now. Tells what came of it, and never throws.
void save_alone(TrainingJob& job, StopReason reason) noexcept;

// Whose state the attempt begins with. Collective, where the job recovers in place; otherwise, and
// where nobody holds one: nobody's. Throws worker::CommunicatorError.
worker::StateLead find_state(TrainingJob& job);

// Gives the lead's model, parts and position to all ranks, before the model is wrapped. What a rank
// holds already it keeps until all of the lead's has come: should the lead be lost on the way, that
// is still there to go on from. Collective, with lead.any. Throws worker::CommunicatorError.
void share_held_state(TrainingJob& job, const worker::StateLead& lead);

// Whether all ranks hold the same now, bit for bit (--shards; by a hash). Collective. Throws
// TrainingError on all ranks alike.
void verify_shared(TrainingJob& job, const worker::StateLead& lead);

}  // namespace ddprun::trainer
