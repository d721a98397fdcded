// Mixed precision: forward and loss in bfloat16 or float16 where that is safe (LibTorch's autocast,
// which decides it operator by operator), weights, gradients and optimizer in float32.
//
//   Precision precision(options.precision, device);
//   { const auto guard = precision.autocast(); loss = ...; }
//   precision.scaled(loss).backward();
//   if (precision.accept(parameters)) optimizer.step();
//
// float16 needs dynamic loss scaling (loss_scaler.h); with the other two scaled() and accept() do
// nothing. Averaged gradients are the same on all ranks, so all ranks decide alike without asking.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/optimizer/device_loss_scale.h"
#include "trainer/optimizer/loss_scaler.h"
#include "trainer/optimizer/precision_option.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// While it lives, this thread's operators on `device` compute in the lower precision. Weights are
// converted once in its scope and the copies are freed with it: open one for each forward of
// training, because the copies do not follow the weights. Does nothing for Fp32.
class [[nodiscard]] AutocastGuard {
 public:
  AutocastGuard(torch::DeviceType device, PrecisionOption precision);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  torch::DeviceType device_;
  bool active_;
  bool enabled_before_ = false;
  torch::ScalarType type_before_ = torch::kFloat32;
};

// Gradients that no loss scale makes finite; the message says what to do.
class GradientsNotFinite : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Precision {
 public:
  Precision(PrecisionOption option, torch::Device device);

  AutocastGuard autocast() const { return AutocastGuard(device_.type(), option_); }

  // The loss to call backward() on. With accumulation: of every part of the batch.
  torch::Tensor scaled(const torch::Tensor& loss) const;

  // After backward, and before anything reads the gradients (clipping, the optimizer): divides
  // those of `parameters`, each given once, by the scale. False: one is not finite, so the step
  // must be left out. Waits for a GPU. Throws GradientsNotFinite after 40 steps in a row that were
  // left out.
  bool accept(const std::vector<torch::Tensor>& parameters);

  LossScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }  // Null but for float16.

  // From now on the scale lives on the device: accept() leaves gradients scaled and says true, the
  // optimizer is given device_scale(), divides, and leaves a step out by itself. Does nothing
  // without scaling.
  void keep_scale_on_device();
  torch::Tensor device_scale() const { return on_device_ ? on_device_->state() : torch::Tensor(); }

  // After the optimizer's step, the `step`th of the run.
  void step_done(std::int64_t step);
  // What has been decided since the last call, as far as it is known; all of it with `wait`, which
  // waits for a GPU. Throws GradientsNotFinite as accept().
  std::vector<StepDecision> take_decisions(bool wait);
  // scaler() is as of the last step; its state was replaced.
  void catch_up();
  void restored();

 private:
  void check(const ScaleDecision& decision) const;

  PrecisionOption option_;
  torch::Device device_;
  std::optional<LossScaler> scaler_;
  std::optional<ScaleDecision> decision_;  // What accept() decided last; of the host's scale.
  std::optional<DeviceLossScale> on_device_;
  std::vector<StepDecision> decisions_;  // Not taken yet.
};

torch::ScalarType type_of(PrecisionOption precision);

// A sentence when this CPU computes in `precision` by emulation, slower than in float32; else "".
// The results are the same.
std::string slow_precision_warning(PrecisionOption precision, torch::Device device);

}  // namespace ddprun::trainer
