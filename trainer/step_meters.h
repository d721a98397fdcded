// The meters of one training pass: what rank 0 prints, gathered without waiting for the device
// on steps that print nothing.
#pragma once

#include <chrono>
#include <functional>

#include "trainer/batch_plan.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/device_pace.h"
#include "trainer/report/meters.h"
#include "trainer/report/reporter.h"
#include "trainer/shards/shard_balance.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Of a step: seconds.
struct StepTimes {
  double step_s = 0;
  double data_s = 0;  // Of it, waiting for the batch ...
  double wait_s = 0;  // ... and for other ranks.
};

class StepMeters {
 public:
  // `exposed`: see communicated(). `validation_s`: of the last validation; 0: not known, or none.
  StepMeters(const BatchPlan& plan, torch::Device device, std::chrono::nanoseconds exposed = {},
             double validation_s = 0);

  void data_due();    // The wait for the next step's batch begins.
  void data_ready();  // The step's batch is there.
  // `counts`: as batch_counts() has them, of `counted` images; `images`: over all workers.
  void step_done(const torch::Tensor& counts, std::int64_t counted, std::int64_t images);

  // Before what is due after a step: waits until the device has done all that it was asked, which
  // is the steps' own time. The host runs ahead of a GPU by many of them. `exposed`: see
  // communicated(), as of then.
  void device_done(const std::function<std::chrono::nanoseconds()>& exposed);

  // For how long this process has waited for communication since its start, as of now. On a GPU
  // without steps that the device is not past.
  void communicated(std::chrono::nanoseconds exposed) {
    last_exposed_ = exposed - exposed_;
    exposed_ = exposed;
    pace_.own_s -= last_exposed_s();
  }

  // The last step and the averages so far. Waits for the device. `state` is that after the step.
  StepReport report(const TrainingState& state, double learning_rate);
  void start_window();   // A line was printed: rates count from here.
  void restart_clock();  // What took time just now was not training.

  // Of the last step, since the one before. On a GPU, whose steps the host does not see, the mean
  // over those before the last device_done(), and until there is one the host's own.
  StepTimes last_times() const;

  // The mean over the steps since the last call, of which there must be one. On a GPU: the host's.
  StepPace take_pace();

  double seconds() const { return seconds_; }      // Of all steps.
  std::int64_t images() const { return images_; }  // Over all workers.
  std::int64_t steps() const { return steps_; }

 private:
  bool on_cpu() const { return counts_.device().is_cpu(); }
  double last_exposed_s() const { return std::chrono::duration<double>(last_exposed_).count(); }

  struct Window {
    std::chrono::nanoseconds exposed_before{0};
    std::int64_t steps = 0;
    std::int64_t images = 0;
    double seconds = 0;
    double data_seconds = 0;
    double host_seconds = 0;  // `seconds` without the waits for the device.
  };

  const BatchPlan& plan_;
  const double validation_s_;
  Stopwatch watch_;
  double after_step_s_ = 0;  // Of what came between the last two steps, but for the batch.
  double data_s_ = 0;
  Meter data_meter_;
  torch::Tensor counts_;       // Sum of batch_counts() so far.
  torch::Tensor last_counts_;  // Of the last step.
  std::int64_t counted_ = 0;
  std::int64_t last_counted_ = 0;
  std::int64_t images_ = 0;
  std::int64_t steps_ = 0;
  double seconds_ = 0;
  double last_step_s_ = 0;
  std::chrono::nanoseconds exposed_;
  std::chrono::nanoseconds last_exposed_{0};
  std::chrono::nanoseconds exposed_when_done_;  // At the last device_done().
  DevicePace device_pace_;
  Window window_;
  StepPace pace_;  // Sums, of so many steps.
  int pace_steps_ = 0;
};

}  // namespace ddprun::trainer
