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

// Below the graph of what is trained, as the module's own update.
torch::Tensor flattened(const std::vector<torch::Tensor>& buffers) {
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& buffer : buffers) flat.push_back(buffer.detach().flatten());
  return torch::cat(flat);
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
  try {
    end_step(running_.data(), 0);
  } catch (const c10::Error&) {  // Of a GPU that takes no work any more: the next call says so.
  }
}

void BatchStatistics::begin_step() {
  in_step_ = true;
  take(running_.data());
  const std::vector<std::int64_t> batches = read_batches();
  for (std::size_t i = 0; i < norms_.size(); ++i) norms_[i].batches = batches[i];
}

void BatchStatistics::begin_shard() {
  micro_batches_ = 0;
  // What is there counts with a weight of 0, but the sign of 0 would stay.
  for (torch::Tensor& buffer : buffers_) {
    if (on_host()) {
      std::fill_n(data_of<float>(buffer), buffer.numel(), 0.0F);
    } else {
      buffer.zero_();
    }
  }
}

void BatchStatistics::begin_micro_batch() {
  ++micro_batches_;
  for (const Norm& norm : norms_) norm.module->options.momentum(1.0 / micro_batches_);
}

void BatchStatistics::take(float* to) const {
  if (!on_host()) {
    const torch::Tensor all = flattened(buffers_).cpu();
    std::copy_n(data_of<float>(all), all.numel(), to);
    return;
  }
  for (const torch::Tensor& buffer : buffers_) {
    to = std::copy_n(data_of<float>(buffer), buffer.numel(), to);
  }
}

void BatchStatistics::write(const float* from) const {
  if (!on_host()) {
    const torch::Tensor all =
        torch::from_blob(const_cast<float*>(from), {size_}).to(buffers_.front().device());
    std::int64_t at = 0;
    for (torch::Tensor buffer : buffers_) {
      buffer.copy_(all.narrow(0, at, buffer.numel()).view(buffer.sizes()));
      at += buffer.numel();
    }
    return;
  }
  for (const torch::Tensor& buffer : buffers_) {
    std::copy_n(from, buffer.numel(), data_of<float>(buffer));
    from += buffer.numel();
  }
}

std::vector<std::int64_t> BatchStatistics::read_batches() const {
  std::vector<std::int64_t> batches;
  if (on_host()) {
    for (const Norm& norm : norms_) {
      batches.push_back(*data_of<std::int64_t>(norm.module->num_batches_tracked));
    }
    return batches;
  }
  std::vector<torch::Tensor> counters;
  for (const Norm& norm : norms_) counters.push_back(norm.module->num_batches_tracked);
  const torch::Tensor all = flattened(counters).cpu();
  const auto* const first = data_of<std::int64_t>(all);
  return {first, first + all.numel()};
}

void BatchStatistics::update(const float* sums, int shards) {
  float* running = running_.data();
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    for (std::int64_t c = 0; c < buffers_[i].numel(); ++c) {
      const double mean = static_cast<double>(*sums++) / shards;
      *running = static_cast<float>((1 - momenta_[i]) * *running + momenta_[i] * mean);
      ++running;
    }
  }
  end_step(running_.data(), 1);
}

void BatchStatistics::end_step(const float* running, std::int64_t more) {
  const torch::NoGradGuard no_grad;
  write(running);
  for (const Norm& norm : norms_) {
    norm.module->options.momentum(norm.momentum);
    if (on_host()) {
      *data_of<std::int64_t>(norm.module->num_batches_tracked) = norm.batches + more;
    } else {
      norm.module->num_batches_tracked.fill_(norm.batches + more);
    }
  }
  in_step_ = false;
}

}  // namespace ddprun::trainer
