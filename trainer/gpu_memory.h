// What takes a GPU's memory (--gpu-memory), and what would fit where it was not enough.
#pragma once

#include <string>

#include "trainer/report/memory_plan.h"
#include "trainer/training_job.h"

namespace ddprun::trainer {

LastingMemory lasting_memory(const TrainingJob& job);

// A line at the start: what stays from step to step, also where a CPU trains.
void tell_lasting_memory(TrainingJob& job);
// And one after the first step: what it took besides. Only a GPU's allocator knows that.
void tell_step_memory(TrainingJob& job);

// Likely: the batch was too large for it if a smaller one can be computed.
enum class OutOfMemory { Sure, Likely };

// The words for a step that ran out of memory, `why` in LibTorch's. Tries two small batches of
// these images to learn what one takes; nobody may train on with this model afterwards.
std::string explain_out_of_memory(TrainingJob& job, const torch::Tensor& images,
                                  const torch::Tensor& labels, const std::string& why,
                                  OutOfMemory cause = OutOfMemory::Sure);

}  // namespace ddprun::trainer
