// In which order ranks give up what a loss has ruined, so that none has it when the next attempt
// asks.
#include "trainer/ruined_state.h"

#include <algorithm>
#include <cmath>

#include "trainer/checkpoint/finite_tensor.h"

namespace ddprun::trainer {

void check_loss(TrainingJob& job, LossGuard& guard, const StepOutput& output,
                const LossOrigin& origin) {
  // With shards the mean is known to every rank, on the host.
  const bool ruined = job.shards && !std::isfinite(output.loss.item<double>());
  if (ruined) {
    // Its gradients are in the weights of all ranks by now.
    job.holds_state = false;
    job.drop_snapshots();
    // Before the first one fails: who was still in the step's reduction would be thrown out of it,
    // and would offer the weights that give this loss.
    job.communicator().barrier();
  }
  guard.watch(output.own_loss, origin);
  if (!ruined) return;
  guard.finish();
  // Another rank's: it fails now and says why, and ends this. Where all come through, each loss was
  // a number, and their sum is too large for one.
  job.communicator().barrier();
  guard.watch(output.loss, origin);
}

bool is_finite(const ImageClassifier& model) {
  const auto finite = [](const torch::Tensor& tensor) { return all_finite(tensor); };
  const auto parameters = model.parameters(), buffers = model.buffers();
  return std::all_of(parameters.begin(), parameters.end(), finite) &&
         std::all_of(buffers.begin(), buffers.end(), finite);
}

}  // namespace ddprun::trainer
