// A step whose work on the device is a graph (--cuda-graph): the inputs that change from step to
// step lie in memory that stays, where a replay finds them.
//
//   rate, images, labels --> memory that stays --> graph: forward, backward, all-reduce, update
#pragma once

#include <functional>
#include <memory>

#include "trainer/device/graph_schedule.h"
#include "trainer/device/step_graph.h"
#include "trainer/step_data.h"
#include "trainer/training_job.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

class RecordedStep {
 public:
  // All that a step does with the device's memory; reads nothing that changes from step to step but
  // its inputs.
  using Work = std::function<StepOutput(const StepInputs& inputs)>;

  // `job` must outlive it, and so must its communicator.
  RecordedStep(TrainingJob& job, Work work);

  // A step: by the work, by its recording, or by a replay. Tells the job's reporter of the first of
  // each kind. The next call may overwrite what the tensors of the output hold.
  StepOutput run(const torch::Tensor& images, const torch::Tensor& labels, double learning_rate);

 private:
  void record(const StepInputs& like);

  TrainingJob& job_;
  const Work work_;
  GraphSchedule schedule_;
  StepInputs inputs_;                 // Of replays; the rate of every step.
  StepOutput output_;                 // Of replays.
  std::unique_ptr<StepGraph> graph_;  // The last: it goes before what it was recorded with.
};

}  // namespace ddprun::trainer
