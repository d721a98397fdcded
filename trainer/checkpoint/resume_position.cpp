// Rounded down where workers cannot share evenly: a few samples twice rather than any left out.
#include "trainer/checkpoint/resume_position.h"

#include "trainer/data/divide_up.h"

namespace ddprun::trainer {

ResumePosition resume_position(std::int64_t samples_done, std::int64_t dataset_size,
                               int world_size) {
  if (samples_done >= dataset_size) {
    return {.skipped_per_worker = divide_up(dataset_size, world_size), .repeated = 0};
  }
  return {.skipped_per_worker = samples_done / world_size, .repeated = samples_done % world_size};
}

std::int64_t steps_for(std::int64_t samples_per_worker, std::int64_t batch_size) {
  return divide_up(samples_per_worker, batch_size);
}

std::int64_t total_steps_from(const RunPosition& position, std::int64_t epochs,
                              std::int64_t samples_per_worker, std::int64_t batch_size) {
  if (position.epoch >= epochs) return position.step;
  return position.step + steps_for(samples_per_worker - position.skipped_per_worker, batch_size) +
         (epochs - position.epoch - 1) * steps_for(samples_per_worker, batch_size);
}

}  // namespace ddprun::trainer
