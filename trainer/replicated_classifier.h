// `--data-parallel`: a model that computes on several devices, or threads, of one worker.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "trainer/batch_plan.h"
#include "trainer/models/image_classifier.h"
#include "worker/torch/data_parallel.h"

namespace ddprun::trainer {

// Forward splits the images over the model and replicas of it (worker/torch/data_parallel.h). Its
// parameters are the model's own.
class ReplicatedClassifier : public ImageClassifier {
 public:
  ReplicatedClassifier(const std::shared_ptr<ImageClassifier>& model,
                       const std::vector<torch::Device>& devices,
                       const std::function<std::shared_ptr<ImageClassifier>()>& make_replica);

  torch::Tensor forward(torch::Tensor images) override;
  std::int64_t normalized_stride() const override;

  int synchronize_batch_norms(const worker::BatchNormGroup& group) {  // As DataParallel's.
    return parallel_.synchronize_batch_norms(group);
  }

 private:
  std::shared_ptr<ImageClassifier> model_;
  worker::DataParallel<ImageClassifier> parallel_;
};

// The smallest part when `images` are split over so many replicas.
std::int64_t smallest_part(std::int64_t images, std::size_t replicas);

// Throws UsageError when a replica would have no images, or, in some batch of an epoch, a single
// one that batch normalisation cannot be trained on, unless it is synchronized over replicas.
void check_parts(const BatchPlan& plan, std::size_t replicas, const ImageClassifier& model,
                 std::int64_t image_size, bool synchronized);

}  // namespace ddprun::trainer
