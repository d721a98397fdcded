// Where an epoch goes on: arithmetic over what was done and the number of workers.
//
// Sample i of rank r is sample i * world_size + r of the epoch's order, which does not depend on
// the number of workers; so another number of them can go on from the same place.
#pragma once

#include <cstdint>

namespace ddprun::trainer {

struct ResumePosition {
  std::int64_t skipped_per_worker = 0;  // Of each rank's samples of the epoch.
  std::int64_t repeated =
      0;  // Samples that were done and come again: the workers share whole rows.
};

// samples_done: of the epoch, over all workers of the run that did them. An epoch whose every
// sample was done is skipped whole, however the two runs pad it.
ResumePosition resume_position(std::int64_t samples_done, std::int64_t dataset_size,
                               int world_size);

// A run whose place in the data is known.
struct RunPosition {
  std::int64_t step = 0;   // Optimizer steps done.
  std::int64_t epoch = 0;  // Full epochs done.
  std::int64_t skipped_per_worker = 0;
};

// That take so many samples of a worker.
std::int64_t steps_for(std::int64_t samples_per_worker, std::int64_t batch_size);

// With how many optimizer steps a run is at its end that goes on from there. Counted from what is
// left of the data, because other numbers of workers or images per step took other numbers of steps
// so far. `epochs` is the number of all epochs.
std::int64_t total_steps_from(const RunPosition& position, std::int64_t epochs,
                              std::int64_t samples_per_worker, std::int64_t batch_size);

}  // namespace ddprun::trainer
