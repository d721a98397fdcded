// What a part of training (optimizer, EMA, loss scaler) puts into a checkpoint besides the model.
//
// To have something saved and restored, push one CheckpointPart into TrainingJob::checkpoint_parts
// in make_training_job(), before bring_to_start(). All else is done for it: the state is written
// with each checkpoint, read on resume, and given to all ranks.
//
//   job.checkpoint_parts.push_back(
//       {.name = "ema",
//        .save = [ema] { return PartState{ema->named_tensors(), {{"decay", "0.999"}}}; },
//        .check = [ema](const PartState& state) { ema->check(state); },      // May be left out.
//        .restore = [ema](const PartState& state) { ema->load(state); }});
//
// In the file, tensor "conv1.weight" and value "decay" of part "ema" are "ema/conv1.weight" and
// "ema/decay" in the metadata.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trainer/formats/safetensors.h"
#include "worker/communicator.h"

namespace ddprun::trainer {

class Sgd;

struct PartState {
  NamedTensors tensors;                       // Any shapes, dtypes, layouts and devices.
  std::map<std::string, std::string> values;  // Numbers as text: fmt's "{}" loses no digit.
};

struct CheckpointPart {
  std::string name;  // Unique; without '/'.

  // The live tensors of this moment, not copies: whoever saves them copies them before training
  // goes on. Called on rank 0 between two steps.
  std::function<PartState()> save;

  // Throws std::invalid_argument saying what does not fit. Changes nothing. May be empty.
  std::function<void(const PartState&)> check;

  // Takes the state over by copying (tensors come on the CPU, or from the device in C order).
  // Called after the model has its weights, on every rank. The state is empty when the checkpoint
  // knows nothing of this part: it then starts anew, from the model's weights where that matters.
  std::function<void(const PartState&)> restore;
};

using CheckpointParts = std::vector<CheckpointPart>;

// SGD's momentum, as "optimizer". Keeps a reference.
CheckpointPart optimizer_part(Sgd& optimizer);

// Between the parts' own names and those in a file. take_part() removes what it returns from both
// lists.
void add_part(const std::string& name, const PartState& state, Safetensors& file);
PartState take_part(const std::string& name, Safetensors& file);

// The states of `root`'s parts, on all ranks: live ones there, elsewhere in memory of their own, in
// which over NCCL nothing may be yet (Communicator::wait). Collective, with the same parts on all
// ranks; `device` is the communicator's. Throws worker::CommunicatorError.
std::vector<PartState> share_states(const CheckpointParts& parts,
                                    worker::Communicator& communicator, torch::Device device,
                                    int root);
// On ranks that are not the root. Throws what a part's restore() throws.
void restore_parts(const CheckpointParts& parts, const std::vector<PartState>& states);
// Both.
void share_parts(const CheckpointParts& parts, worker::Communicator& communicator,
                 torch::Device device, int root = 0);

}  // namespace ddprun::trainer
