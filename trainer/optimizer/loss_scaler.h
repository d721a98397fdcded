// Dynamic loss scaling for float16: by how much the loss is multiplied before backward, so that
// small gradients do not vanish in a format that ends at 6e-8, and whether a step may be taken.
// One answer per step in, the decision with its reason out.
//
// The rule and its defaults are those of torch.amp.GradScaler, in the same float32 arithmetic, so
// that both pass through the same states. A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::trainer {

struct LossScalerOptions {
  float initial_scale = 65536;
  double growth_factor = 2;             // Applied after growth_interval steps taken in a row.
  double backoff_factor = 0.5;          // Applied when a gradient is not finite.
  std::int64_t growth_interval = 2000;  // Steps.
  std::int64_t skipped_in_a_row_max = 40;
};

// What a checkpoint must hold.
struct LossScalerState {
  float scale = 0;
  std::int64_t growth_steps = 0;  // Taken in a row since the scale last changed.
};

struct ScaleDecision {
  bool take_step = true;    // False: leave weights, momentum and averages of weights as they are.
  bool can_go_on = true;    // False: so many steps in a row were skipped that no scale will help.
  float scale_before = 0;   // With which this step's gradients were computed.
  float scale_after = 0;    // For the next step.
  std::string reason = "";  // In words when the step is skipped or the scale changes; else empty.
};

class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options = {});

  float scale() const { return state_.scale; }
  std::int64_t skipped() const { return skipped_; }  // Steps, since this object was made.

  // Once per optimizer step, when its gradients are known: are all of them, on every rank, finite?
  ScaleDecision decide(bool gradients_are_finite);

  LossScalerState state() const { return state_; }
  // False, with nothing changed, for a state that no scaler can be in (a damaged checkpoint).
  [[nodiscard]] bool restore(const LossScalerState& state);

 private:
  LossScalerOptions options_;
  LossScalerState state_;
  std::int64_t skipped_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
};

}  // namespace ddprun::trainer
