// Sources are views of the model's own tensors, so an update needs no walk over its modules.
#include "trainer/optimizer/model_average.h"

namespace ddprun::trainer {

ModelAverage::ModelAverage(torch::nn::Module& model, double decay) : decay_(decay) {
  const torch::NoGradGuard no_grad;
  const auto add = [&](const std::string& name, const torch::Tensor& source) {
    const torch::Tensor detached = source.detach();
    entries_.push_back({name, detached, detached.clone()});
    if (!source.is_floating_point()) return;
    floating_sources_.push_back(detached);
    floating_averages_.push_back(entries_.back().average);
  };
  for (const auto& item : model.named_parameters()) add(item.key(), item.value());
  for (const auto& item : model.named_buffers()) add(item.key(), item.value());
}

void ModelAverage::update() {
  const torch::NoGradGuard no_grad;
  for (Entry& entry : entries_) {
    if (!started_ || !entry.source.is_floating_point()) entry.average.copy_(entry.source);
  }
  if (started_) at::_foreach_lerp_(floating_averages_, floating_sources_, 1 - decay_);
  started_ = true;
}

std::vector<std::pair<std::string, torch::Tensor>> ModelAverage::tensors() const {
  std::vector<std::pair<std::string, torch::Tensor>> named;
  for (const Entry& entry : entries_) named.emplace_back(entry.name, entry.average);
  return named;
}

void ModelAverage::swap() {
  const torch::NoGradGuard no_grad;
  for (Entry& entry : entries_) {
    // By content, not by exchanging tensors: the optimizer and the wrapped model hold on to these.
    const torch::Tensor kept = entry.source.clone();
    entry.source.copy_(entry.average);
    entry.average.copy_(kept);
  }
}

}  // namespace ddprun::trainer
