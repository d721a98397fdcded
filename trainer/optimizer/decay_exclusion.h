// Which parameters weight decay leaves alone, as --no-decay says it; without LibTorch.
#pragma once

namespace ddprun::trainer {

// What `--no-decay` leaves without weight decay.
struct DecayExclusion {
  bool batch_norm = false;  // Weights and biases of batch normalisation.
  bool bias = false;        // Everything called bias.
};

}  // namespace ddprun::trainer
