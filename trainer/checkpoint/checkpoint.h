// A checkpoint: everything that training needs to go on as if it had never stopped, in one
// safetensors file.
//
//   conv1.weight, bn1.running_mean ...       the model, by torchvision's names
//   optimizer/momentum/conv1.weight ...      SGD's momentum: the state of the part "optimizer"
//   ema/conv1.weight ...                     other parts (checkpoint_part.h)
//   __metadata__                             format, what was trained, position, best accuracy
//
// Random numbers need no state: sample order is a function of (seed, epoch), and what a step draws
// (dropout) of (seed, step, rank or shard). The position counts samples over all workers or shards,
// so a job may go on with another number of workers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "trainer/checkpoint/checkpoint_part.h"
#include "trainer/data/data_identity.h"
#include "trainer/data/dataset.h"
#include "trainer/formats/safetensors.h"
#include "trainer/models/image_classifier.h"
#include "trainer/optimizer/precision_option.h"

namespace ddprun::trainer {

// A checkpoint that cannot be used. The message names the file and the reason.
class CheckpointError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A sound checkpoint of something else; the message names what differs.
class ForeignCheckpointError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

// What an accuracy is of: others cannot be compared with it.
struct ValidationIdentity {
  std::string list_checksum;  // As DataIdentity's.
  std::int64_t resize = 0;    // --val-resize-size, or what is usual for the data set.
  bool averaged = false;      // --ema
};

// What a checkpoint must agree on with the run that loads it, but for the last.
struct RunIdentity {
  std::string model;    // "resnet18, small stem"
  std::string dataset;  // "mnist"
  std::string image;    // "1x28x28"
  std::int64_t classes = 0;
  std::optional<std::uint64_t> seed;  // Nothing with --evaluate, which draws nothing.
  DataIdentity data;                  // With --evaluate the classes alone.
  std::optional<ValidationIdentity> validation = {};  // Nothing where none is done in training.
  // Of the pixels that the weights learn from and are validated with. Another one is a warning.
  Normalization normalization = {};
  PrecisionOption precision = PrecisionOption::Fp32;
};

struct TrainingState {
  std::int64_t epoch = 0;         // Full epochs done.
  std::int64_t samples_done = 0;  // Of the epoch at hand, over all workers.
  std::int64_t step = 0;          // Optimizer steps done.
  double best_prec1 = 0;          // Percent; of validations so far.
};

// Neither copies tensors: they are the live ones, to be written or copied before training goes on.
Safetensors make_checkpoint(const RunIdentity& identity, const TrainingState& state,
                            const torch::nn::Module& model, const CheckpointParts& parts);

// Only the model, for other programs: loads in Python with strict=True.
Safetensors make_weights(const RunIdentity& identity, const TrainingState& state,
                         const torch::nn::Module& model);

struct RestoredCheckpoint {
  TrainingState state;
  std::vector<std::string> unknown_parts;  // In the file, but not in this run.
  std::vector<std::string> warnings;       // Naming the file: what differs, what is not known.
};

// What may differ between a checkpoint and the run that loads it.
enum class IdentityCheck {
  Strict,  // Nothing.
  Anyway,  // Whatever the weights fit in spite of: data, image size and seed.
};

// Puts a checkpoint into the model and the parts. Nothing is changed when it throws:
// CheckpointError, or ForeignCheckpointError.
RestoredCheckpoint restore_checkpoint(Safetensors file, const std::string& name,
                                      const RunIdentity& identity, torch::nn::Module& model,
                                      const CheckpointParts& parts,
                                      IdentityCheck check = IdentityCheck::Strict);

// Throws ForeignCheckpointError, with all differences at once, where a file is of another run.
// Returns the warnings of what is let through.
std::vector<std::string> check_identity(const Safetensors& file, const std::string& name,
                                        const RunIdentity& identity, IdentityCheck check);

// In what the mean and std of a file, by its metadata, are other than this run's, in words; ""
// where they are not, or the file does not tell, as those of older versions.
std::string pixel_difference(const Metadata& found, const RunIdentity& identity);

// With what other numbers than the file's own this run computes a loss, so that one which is not
// finite says nothing against the file: "on pixels of another scale ..."; "" with the same.
std::string other_numbers_text(const Metadata& found, const RunIdentity& identity);

// The warning of a file with such a difference of pixels.
std::string other_pixels_text(const std::string& name, const std::string& difference);

// How many optimizer steps were done. `name` is the file's, for the CheckpointError of one that
// does not tell.
std::int64_t step_of(const Safetensors& file, const std::string& name);

// The best accuracy that a file tells of, as this run's validation would find it: 0 where another
// one has found it. Throws as step_of().
double accuracy_in(const Safetensors& file, const std::string& name, const RunIdentity& identity);

// A tensor's name as the model has it: without what Python's wrappers put into it, "module." of DDP
// in front and "_orig_mod." of torch.compile() anywhere, in whichever order they wrap.
std::string unwrapped_name(std::string name);

// Loads parameters and buffers by name; what wrappers add to names is ignored. Names and
// shapes must agree exactly: throws CheckpointError naming those that do not, before any change.
void load_weights(const NamedTensors& tensors, const std::string& name, torch::nn::Module& model);

}  // namespace ddprun::trainer
