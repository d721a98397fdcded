// Where training starts: from the seed, from given weights, or from a checkpoint.
#pragma once

#include <functional>
#include <string>

#include "trainer/training_job.h"
#include "worker/state_lead.h"

namespace ddprun::trainer {

// A first attempt that is to begin anew (--resume none) must not overwrite what is in the folder:
// UsageError. Before anybody is met: had this attempt ended earlier, the next one would take what
// lies there for this job's own. Rank 0.
void check_new_start(const TrainingJob& job);

// Rank 0 loads into the model, the optimizer and the state what --weights and --resume ask for, so
// only rank 0 needs the files. After a restart by the launcher the job's own newest checkpoint
// comes first. Throws CheckpointError or SafetensorsError; the other ranks then lose their peer.
void bring_to_start(TrainingJob& job);

// After a restart: the newest snapshot that any node has in its memory, if that is at least as far
// as the newest checkpoint on the disk. Its rank, the lead, has it in model, parts and state then;
// nobody's (lead.any is false): bring_to_start() is next. Collective.
worker::StateLead find_snapshot(TrainingJob& job);

// Says so, once all ranks have its state, and that they do. Collective. Throws TrainingError on all
// ranks alike.
void verify_snapshot(TrainingJob& job, const worker::StateLead& lead);

// The best accuracy that counts from here on: what the folder's best weights tell of themselves.
// Somebody may know of better ones that nobody came to write, or that are in another folder; who
// has gone back to an older checkpoint knows of worse ones alone. 0: there are none, or none of
// this validation, or they are damaged, which is told; the next validation's replace them. `known`:
// where they cannot be read now.
double written_best(const CheckpointFolder& folder, const RunIdentity& identity, double known,
                    const std::function<void(const std::string& text)>& warn);

// The position of `root`, on all ranks. Collective.
TrainingState share_position(TrainingJob& job, int root);

// Gives all ranks the position of the lead, and its parts where nobody held a state before: then it
// is rank 0 (the model is DistributedDataParallel's business). Finds the place in the data for this
// number of workers. Collective.
void share_state(TrainingJob& job, const worker::StateLead& lead);

}  // namespace ddprun::trainer
