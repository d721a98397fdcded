// What the fused kernel must be given: groups of one kind, and memory that it does not copy.
#include "trainer/optimizer/sgd.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "trainer/optimizer/lars.h"

namespace ddprun::trainer {
namespace {

// The fused kernel walks raw memory, so a gradient must lie exactly as its parameter does.
torch::Tensor gradient_like(const torch::Tensor& parameter) {
  const torch::Tensor& gradient = parameter.grad();
  if (same_order(gradient, parameter)) return gradient;
  return torch::empty_like(parameter).copy_(gradient);
}

// The same memory as one row. The fused kernel makes contiguous copies of tensors that are not, and
// so of every weight in channels-last order, only to walk over the memory of the originals.
std::vector<torch::Tensor> as_rows(std::vector<torch::Tensor> tensors) {
  for (torch::Tensor& tensor : tensors) {
    if (!tensor.is_contiguous() && tensor.is_non_overlapping_and_dense()) {
      tensor = tensor.as_strided({tensor.numel()}, {1});
    }
  }
  return tensors;
}

}  // namespace

Sgd::Sgd(const std::vector<std::pair<std::string, torch::Tensor>>& parameters, SgdOptions options)
    : options_(std::move(options)) {
  for (const auto& [name, parameter] : parameters) {
    const bool decays = !options_.no_decay.contains(name);
    const bool adapts = options_.lars && !options_.lars->not_adapted.contains(name);
    slots_.push_back({name, parameter, {}, {}, decays, adapts});
  }
}

void Sgd::write_copies(const std::vector<std::pair<torch::Tensor, torch::Tensor>>& copies) {
  for (Slot& slot : slots_) {
    const auto found = std::find_if(copies.begin(), copies.end(), [&](const auto& pair) {
      return pair.first.is_same(slot.parameter);
    });
    slot.copy = found == copies.end() ? torch::Tensor() : found->second;
  }
}

void Sgd::step(double learning_rate, const torch::Tensor& loss_scale,
               const torch::Tensor& rate_there) {
  torch::NoGradGuard no_grad;
  if (options_.own_kernel) return step_by_own_kernel(learning_rate, loss_scale, rate_there);
  // By what update() must be told: mostly there is one group, which is one fused pass.
  std::array<std::vector<Slot*>, 8> groups;
  for (Slot& slot : slots_) {
    if (!slot.parameter.grad().defined()) continue;
    const bool first_step = options_.momentum != 0 && !slot.momentum.defined();
    // Uninitialised: told of the first step, the kernel writes v = g and reads nothing.
    if (first_step) slot.momentum = torch::empty_like(slot.parameter);
    groups[(first_step ? 4 : 0) + (slot.decays ? 2 : 0) + (slot.adapts ? 1 : 0)].push_back(&slot);
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].empty()) update(groups[i], learning_rate, /*first_step=*/i >= 4);
  }
}

void Sgd::step_by_own_kernel(double learning_rate, const torch::Tensor& loss_scale,
                             const torch::Tensor& rate_there) {
  std::vector<FusedSgd::Slot> updated;
  for (Slot& slot : slots_) {
    if (!slot.parameter.grad().defined()) continue;
    const bool first_step = options_.momentum != 0 && !slot.momentum.defined();
    // Zeros: the first step may be left out for an overflow, which only the device knows, and what
    // it then adds its gradient to must be nothing.
    if (first_step) slot.momentum = torch::zeros_like(slot.parameter);
    updated.push_back({slot.parameter, gradient_like(slot.parameter), slot.momentum, slot.copy,
                       slot.decays ? options_.weight_decay : 0, first_step});
  }
  const float* const rate_at = rate_there.defined() ? rate_there.data_ptr<float>() : nullptr;
  fused_.step(updated, {options_.momentum, options_.nesterov, learning_rate, rate_at}, loss_scale);
}

void Sgd::update(const std::vector<Slot*>& slots, double learning_rate, bool first_step) {
  std::vector<torch::Tensor> parameters, gradients, momenta;
  for (Slot* slot : slots) {
    parameters.push_back(slot->parameter);
    gradients.push_back(gradient_like(slot->parameter));
    if (options_.momentum != 0) momenta.push_back(slot->momentum);
  }
  double decay = slots.front()->decays ? options_.weight_decay : 0;
  if (options_.lars) {  // Rate and decay are part of what the momentum sums up.
    gradients = slots.front()->adapts ? lars_updates(parameters, gradients, learning_rate,
                                                     options_.lars->trust, decay)
                                      : plain_updates(parameters, gradients, learning_rate, decay);
    learning_rate = 1;
    decay = 0;
  }
  at::_fused_sgd_(as_rows(parameters), as_rows(gradients), as_rows(momenta), decay,
                  options_.momentum, learning_rate,
                  /*dampening=*/0.0, options_.nesterov, /*maximize=*/false, first_step);
}

std::vector<std::pair<std::string, torch::Tensor>> Sgd::momentum_buffers() const {
  std::vector<std::pair<std::string, torch::Tensor>> buffers;
  for (const Slot& slot : slots_) {
    if (slot.momentum.defined()) buffers.emplace_back(slot.name, slot.momentum);
  }
  return buffers;
}

std::size_t Sgd::index_of(const std::string& name) const {
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& candidate) { return candidate.name == name; });
  if (slot == slots_.end()) {
    throw std::invalid_argument(fmt::format("momentum for '{}', which is no parameter", name));
  }
  return static_cast<std::size_t>(slot - slots_.begin());
}

void Sgd::check_momentum_buffers(
    const std::vector<std::pair<std::string, torch::Tensor>>& buffers) const {
  for (const auto& [name, buffer] : buffers) {
    const torch::Tensor& parameter = slots_[index_of(name)].parameter;
    if (parameter.sizes() != buffer.sizes() || parameter.scalar_type() != buffer.scalar_type()) {
      throw std::invalid_argument(
          fmt::format("the momentum of '{}' has not the shape and type of the parameter", name));
    }
  }
}

void Sgd::load_momentum_buffers(const std::vector<std::pair<std::string, torch::Tensor>>& buffers) {
  check_momentum_buffers(buffers);
  torch::NoGradGuard no_grad;
  for (Slot& slot : slots_) slot.momentum.reset();
  for (const auto& [name, buffer] : buffers) {
    Slot& slot = slots_[index_of(name)];
    slot.momentum = torch::empty_like(slot.parameter).copy_(buffer);
  }
}

}  // namespace ddprun::trainer
