// Copies of 24 bytes behind each step, looked at when they have come.
#include "trainer/optimizer/device_loss_scale.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>
#include <cstring>

#include "trainer/kernels/device/on_device.h"

namespace ddprun::trainer {
namespace {

// By so many steps the host may run ahead of the device, as LossGuard's.
constexpr std::size_t steps_ahead_max = 8;

LossScale scale_of(const LossScaler& scaler) {
  LossScale scale;
  scale.scale = scaler.state().scale;
  scale.inverse = static_cast<float>(1.0 / static_cast<double>(scale.scale));
  scale.growth_steps = static_cast<std::int32_t>(scaler.state().growth_steps);
  return scale;
}

}  // namespace

DeviceLossScale::DeviceLossScale(torch::Device device, LossScaler& scaler)
    : device_(device),
      scaler_(scaler),
      state_(torch::empty({static_cast<std::int64_t>(sizeof(LossScale))},
                          torch::dtype(torch::kUInt8).device(device))),
      factor_(state_.view(torch::kFloat32)[offsetof(LossScale, scale) / sizeof(float)]) {
  restored();
}

void DeviceLossScale::restored() {
  pending_.clear();
  skipped_ = 0;
  state_.copy_(upload(std::vector<LossScale>{scale_of(scaler_)}, device_));
}

void DeviceLossScale::step_done(std::int64_t step) {
  // Page-locked: a copy into other memory waits for all that is queued, which is what this avoids.
  torch::Tensor on_host =
      torch::empty(state_.sizes(), torch::dtype(torch::kUInt8).pinned_memory(device_.is_cuda()));
  on_host.copy_(state_, /*non_blocking=*/true);
  std::optional<c10::Event> copied;
  if (!device_.is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    copied.emplace(device_.type());
    copied->record(guard.getStream(device_));
  }
  pending_.push_back({step, std::move(on_host), std::move(copied)});
}

std::vector<StepDecision> DeviceLossScale::take(bool wait) {
  std::vector<StepDecision> decisions;
  while (!pending_.empty()) {
    const Pending& first = pending_.front();
    if (first.copied && !first.copied->query()) {
      if (!wait && pending_.size() < steps_ahead_max) break;
      first.copied->synchronize();
    }
    LossScale state;
    std::memcpy(&state, first.on_host.data_ptr(), sizeof state);
    // The kernel counts the steps that it leaves out; one more than with the step before is this.
    decisions.push_back({first.step, scaler_.decide(state.skipped == skipped_)});
    skipped_ = state.skipped;
    pending_.pop_front();
  }
  return decisions;
}

}  // namespace ddprun::trainer
