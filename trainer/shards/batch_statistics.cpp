// Plain copies of some thousand numbers: as tensor operations they would be a hundred calls a step.
#include "trainer/shards/batch_statistics.h"

#include <algorithm>
#include <stdexcept>

namespace ddprun::trainer {
namespace {

template <typename Number>
Number* data_of(const torch::Tensor& buffer) {
  return buffer.data_ptr<Number>();
}

}  // namespace

BatchStatistics::BatchStatistics(const torch::nn::Module& model) {
  for (const auto& module : model.modules()) {
    const auto norm = std::dynamic_pointer_cast<torch::nn::BatchNorm2dImpl>(module);
    if (!norm || !norm->options.track_running_stats()) continue;
    norms_.push_back({norm, norm->options.momentum().value_or(0), 0});
    for (const torch::Tensor& buffer : {norm->running_mean, norm->running_var}) {
      buffers_.push_back(buffer);
      momenta_.push_back(norms_.back().momentum);
      size_ += buffer.numel();
    }
    if (!norm->options.momentum()) {
      throw std::invalid_argument(
          "shards: a BatchNorm without momentum, of which an average over "
          "all steps is asked for");
    }
  }
  if (model.buffers().size() != 3 * norms_.size()) {
    throw std::invalid_argument("shards: the model has buffers besides BatchNorm's");
  }
  running_.resize(static_cast<std::size_t>(size_));
}

// A worker that lost a peer does the step again, or has done its last.
BatchStatistics::~BatchStatistics() {
  if (!in_step_) return;
  const float* running = running_.data();
  for (const torch::Tensor& buffer : buffers_) {
    std::copy_n(running, buffer.numel(), data_of<float>(buffer));
    running += buffer.numel();
  }
  for (const Norm& norm : norms_) {
    norm.module->options.momentum(norm.momentum);
    *data_of<std::int64_t>(norm.module->num_batches_tracked) = norm.batches;
  }
}

void BatchStatistics::begin_step() {
  in_step_ = true;
  take(running_.data());
  for (Norm& norm : norms_) norm.batches = *data_of<std::int64_t>(norm.module->num_batches_tracked);
}

void BatchStatistics::begin_shard() {
  micro_batches_ = 0;
  // What is there counts with a weight of 0, but the sign of 0 would stay.
  for (const torch::Tensor& buffer : buffers_) {
    std::fill_n(data_of<float>(buffer), buffer.numel(), 0.0F);
  }
}

void BatchStatistics::begin_micro_batch() {
  ++micro_batches_;
  for (const Norm& norm : norms_) norm.module->options.momentum(1.0 / micro_batches_);
}

void BatchStatistics::take(float* to) const {
  for (const torch::Tensor& buffer : buffers_) {
    to = std::copy_n(data_of<float>(buffer), buffer.numel(), to);
  }
}

void BatchStatistics::update(const float* sums, int shards) {
  const float* running = running_.data();
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    float* to = data_of<float>(buffers_[i]);
    for (std::int64_t c = 0; c < buffers_[i].numel(); ++c) {
      const double mean = static_cast<double>(*sums++) / shards;
      *to++ = static_cast<float>((1 - momenta_[i]) * *running++ + momenta_[i] * mean);
    }
  }
  for (const Norm& norm : norms_) {
    norm.module->options.momentum(norm.momentum);
    *data_of<std::int64_t>(norm.module->num_batches_tracked) = norm.batches + 1;
  }
  in_step_ = false;
}

}  // namespace ddprun::trainer
