// Checks beforehand what one replica would get: a single image stops batch norm in mid-epoch.
#include "trainer/replicated_classifier.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/data/divide_up.h"

namespace ddprun::trainer {

ReplicatedClassifier::ReplicatedClassifier(
    const std::shared_ptr<ImageClassifier>& model, const std::vector<torch::Device>& devices,
    const std::function<std::shared_ptr<ImageClassifier>()>& make_replica)
    : model_(register_module("model", model)), parallel_(model, devices, make_replica) {}

torch::Tensor ReplicatedClassifier::forward(torch::Tensor images) {
  return parallel_.forward(images);
}

std::int64_t ReplicatedClassifier::normalized_stride() const { return model_->normalized_stride(); }

std::int64_t smallest_part(std::int64_t images, std::size_t replicas) {
  const std::int64_t size = divide_up(images, static_cast<std::int64_t>(replicas));
  return images - (divide_up(images, size) - 1) * size;
}

void check_parts(const BatchPlan& plan, std::size_t replicas, const ImageClassifier& model,
                 std::int64_t image_size, bool synchronized) {
  if (replicas == 1) return;
  if (plan.micro_batch_size < static_cast<std::int64_t>(replicas)) {
    throw UsageError(fmt::format("--data-parallel {}: a batch of {} images has not one for each",
                                 replicas, plan.micro_batch_size));
  }
  if (synchronized || image_size > model.normalized_stride()) return;
  for (const std::int64_t images : {plan.micro_batch_size, plan.last_micro_batch_size()}) {
    if (smallest_part(images, replicas) > 1) continue;
    throw UsageError(fmt::format(
        "--data-parallel {}: of {} images, the {} batch, one replica would get a single one, which "
        "batch normalisation cannot be trained on at {} pixels: choose another --batch-size, or "
        "normalise over all replicas with --sync-bn",
        replicas, images, images == plan.micro_batch_size ? "size of a" : "last of an epoch's",
        image_size));
  }
}

}  // namespace ddprun::trainer
