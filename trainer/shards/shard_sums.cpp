// A gradient is added where it lies as soon as its sibling is there: one pass over memory a shard.
#include "trainer/shards/shard_sums.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <stdexcept>
#include <utility>

namespace ddprun::trainer {
namespace {

constexpr std::int64_t flat_alignment = 16;  // Floats: 64 bytes, as LibTorch's own memory.

std::int64_t rounded_up(std::int64_t count, std::int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace

ShardSums::ShardSums(int shards, std::vector<torch::Tensor> parameters, std::int64_t figures,
                     std::int64_t slices)
    : shards_(shards),
      parameters_(std::move(parameters)),
      figures_(figures),
      slices_(slices),
      counter_(shards) {
  for (const torch::Tensor& parameter : parameters_) {
    if (parameter.device() == device() && parameter.scalar_type() == torch::kFloat32 &&
        parameter.is_non_overlapping_and_dense()) {
      continue;
    }
    throw std::invalid_argument("shards: a parameter is no dense float32 on " + device().str() +
                                ", but " + parameter.toString());
  }
}

FlatSum ShardSums::make_sum() const {
  std::int64_t gradients = 0;
  for (const torch::Tensor& parameter : parameters_) {
    gradients += rounded_up(parameter.numel(), flat_alignment);
  }
  FlatSum sum;
  sum.flat = torch::zeros({rounded_up(gradients + figures_, flat_alignment * slices_)}, device());
  // Below autograd, as those of FlatGradients: gradients must not be views in its sense.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  sum.all_gradients = sum.flat.narrow(0, 0, gradients);
  sum.figures = sum.flat.narrow(0, gradients, figures_);
  std::int64_t at = 0;
  for (const torch::Tensor& parameter : parameters_) {
    sum.gradients.push_back(at::as_strided(sum.flat, parameter.sizes(), parameter.strides(), at));
    at += rounded_up(parameter.numel(), flat_alignment);
  }
  return sum;
}

void ShardSums::add(int shard, const torch::Tensor& figures) {
  const torch::NoGradGuard no_grad;
  int met = counter_.push({0, shard});
  if (met == 0) {
    if (free_.empty()) free_.push_back(make_sum());
    sums_.push_back(std::move(free_.back()));
    free_.pop_back();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      sums_.back().gradients[i].copy_(parameters_[i].grad());
    }
    sums_.back().figures.copy_(figures);
    return;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    sums_.back().gradients[i].add_(parameters_[i].grad());
  }
  sums_.back().figures.add_(figures);
  for (; met > 1; --met) {
    free_.push_back(std::move(sums_.back()));
    sums_.pop_back();
    sums_.back().flat.add_(free_.back().flat);
  }
}

void ShardSums::complete(std::size_t parameter, torch::Tensor gradient) const {
  const torch::NoGradGuard no_grad;
  for (auto sum = sums_.rbegin(); sum != sums_.rend(); ++sum) {
    gradient.add_(sum->gradients[parameter]);
  }
}

void ShardSums::complete_figures(torch::Tensor figures) const {
  for (auto sum = sums_.rbegin(); sum != sums_.rend(); ++sum) figures.add_(sum->figures);
}

void ShardSums::clear() {
  while (!sums_.empty()) {
    free_.push_back(std::move(sums_.back()));
    sums_.pop_back();
  }
  counter_ = NodeCounter(shards_);
}

}  // namespace ddprun::trainer
