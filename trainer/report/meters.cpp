// Counts stay on the device; the host asks for them only when a line is due.
#include "trainer/report/meters.h"

namespace ddprun::trainer {

// The average of all but the last, and then the last.
Meter meter_of(double last_sum, double last_count, double sum, double count) {
  Meter meter;
  if (count > last_count) {
    meter.update((sum - last_sum) / (count - last_count), count - last_count);
  }
  if (last_count > 0) meter.update(last_sum / last_count, last_count);
  return meter;
}

torch::Tensor batch_counts(const torch::Tensor& logits, const torch::Tensor& labels,
                           const torch::Tensor& mean_loss) {
  torch::NoGradGuard no_grad;
  const torch::Tensor column = labels.unsqueeze(1);
  const torch::Tensor score = logits.gather(1, column);
  const torch::Tensor classes = torch::arange(logits.size(1), labels.options());
  // "Not less or equal" and not "greater": every comparison with NaN is false, so that it counts as
  // before the label, and never as right.
  const torch::Tensor before = (logits <= score)
                                   .logical_not_()
                                   .logical_or_((logits == score).logical_and_(classes < column));
  const torch::Tensor rank = before.sum(1);  // (N): how many classes precede the label.
  return torch::stack({mean_loss.detach().to(torch::kFloat64) * logits.size(0),
                       (rank < 1).sum().to(torch::kFloat64), (rank < 5).sum().to(torch::kFloat64)});
}

}  // namespace ddprun::trainer
