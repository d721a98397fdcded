// GradScaler's arithmetic, and one rule that it lacks: when to give up (can_go_on).
#include "trainer/optimizer/loss_scaler.h"

#include <fmt/format.h>

#include <cmath>

namespace ddprun::trainer {

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options), state_{options.initial_scale, 0} {}

ScaleDecision LossScaler::decide(bool gradients_are_finite) {
  ScaleDecision decision;
  decision.take_step = gradients_are_finite;
  decision.scale_before = state_.scale;
  if (!gradients_are_finite) {
    state_ = {static_cast<float>(state_.scale * options_.backoff_factor), 0};
    ++skipped_;
    ++skipped_in_a_row_;
    decision.can_go_on = skipped_in_a_row_ < options_.skipped_in_a_row_max;
    decision.reason =
        fmt::format("a gradient is not finite with the loss scaled by {}: the step is skipped",
                    decision.scale_before);
  } else {
    skipped_in_a_row_ = 0;
    if (++state_.growth_steps == options_.growth_interval) {
      const auto grown = static_cast<float>(state_.scale * options_.growth_factor);
      state_.growth_steps = 0;
      // As in GradScaler's kernel: a scale that would become infinite stays, and growth starts
      // again.
      if (std::isfinite(grown)) {
        state_.scale = grown;
        decision.reason =
            fmt::format("{} steps in a row had finite gradients", options_.growth_interval);
      }
    }
  }
  decision.scale_after = state_.scale;
  return decision;
}

bool LossScaler::restore(const LossScalerState& state) {
  const bool possible = std::isfinite(state.scale) && state.scale > 0 && state.growth_steps >= 0 &&
                        state.growth_steps < options_.growth_interval;
  if (possible) state_ = state;
  return possible;
}

}  // namespace ddprun::trainer
