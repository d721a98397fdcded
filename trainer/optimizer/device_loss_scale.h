// The loss scale in the device's memory, where the optimizer's kernel advances it, and the host's
// LossScaler, which follows a few steps behind without waiting: it is what messages and checkpoints
// are made of.
#pragma once

#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "trainer/kernels/device/step_kernels.h"
#include "trainer/optimizer/loss_scaler.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// What was decided about a step of the run.
struct StepDecision {
  std::int64_t step = 0;
  ScaleDecision decision;
};

class DeviceLossScale {
 public:
  // `scaler` has the state to begin with, and must outlive it.
  DeviceLossScale(torch::Device device, LossScaler& scaler);

  torch::Tensor factor() const { return factor_; }  // A scalar, to multiply the loss by.
  // A LossScale, for FusedSgd.
  const torch::Tensor& state() const { return state_; }

  // The optimizer's kernel was queued for this step of the run.
  void step_done(std::int64_t step);

  // What is known by now, or with `wait` of all steps; each step once.
  std::vector<StepDecision> take(bool wait);

  // `scaler` was given another state.
  void restored();

 private:
  struct Pending {
    std::int64_t step;
    torch::Tensor on_host;
    std::optional<c10::Event> copied;  // None on a CPU.
  };

  torch::Device device_;
  LossScaler& scaler_;
  torch::Tensor state_, factor_;
  std::deque<Pending> pending_;
  std::int32_t skipped_ = 0;  // Of those that `scaler` knows of.
};

}  // namespace ddprun::trainer
