// LibTorch's autocast and unscaling, called as torch.amp calls them; the rule is loss_scaler's.
#include "trainer/optimizer/precision.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

namespace ddprun::trainer {
namespace {

// Divides in place and says whether all elements were finite. The operator wants tensors of one
// device without gaps, which gradients are.
bool unscale(const std::vector<torch::Tensor>& parameters, float scale) {
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> defined;
  for (const torch::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) defined.push_back(parameter.grad());
  }
  if (defined.empty()) return true;
  const auto options = torch::dtype(torch::kFloat32).device(defined.front().device());
  torch::Tensor not_finite = torch::zeros({1}, options);
  // In double, then rounded, as GradScaler does.
  const torch::Tensor inverse =
      torch::full({1}, static_cast<float>(1.0 / static_cast<double>(scale)), options);
  at::_amp_foreach_non_finite_check_and_unscale_(defined, not_finite, inverse);
  return not_finite.item<float>() == 0;
}

// Of the instructions that the kernels of the two types need.
bool cpu_computes(PrecisionOption precision) {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (precision == PrecisionOption::Bf16) {
    constexpr unsigned avx512_bf16 = 1U << 5;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & avx512_bf16) != 0;
  }
  constexpr unsigned avx512_fp16 = 1U << 23;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & avx512_fp16) != 0;
#else
  return true;  // Not known.
#endif
}

}  // namespace

AutocastGuard::AutocastGuard(torch::DeviceType device, PrecisionOption precision)
    : device_(device), active_(precision != PrecisionOption::Fp32) {
  if (!active_) return;
  enabled_before_ = at::autocast::is_autocast_enabled(device_);
  type_before_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, type_of(precision));
  // Copies of an enclosing scope may be of another type; the cache does not tell them apart.
  if (at::autocast::increment_nesting() > 1) at::autocast::clear_cache();
}

AutocastGuard::~AutocastGuard() {
  if (!active_) return;
  at::autocast::decrement_nesting();
  at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device_, type_before_);
  at::autocast::set_autocast_enabled(device_, enabled_before_);
}

Precision::Precision(PrecisionOption option, torch::Device device)
    : option_(option), device_(device) {
  if (option == PrecisionOption::Fp16) scaler_.emplace();
}

torch::Tensor Precision::scaled(const torch::Tensor& loss) const {
  if (on_device_) return loss * on_device_->factor();
  return scaler_ ? loss * static_cast<double>(scaler_->scale()) : loss;
}

void Precision::check(const ScaleDecision& decision) const {
  if (decision.can_go_on) return;
  throw GradientsNotFinite(fmt::format(
      "gradients were not finite in {} steps in a row, down to a loss scale of {}: the loss "
      "diverges; lower --lr, add --warmup-steps, or use --precision bf16",
      LossScalerOptions{}.skipped_in_a_row_max, decision.scale_before));
}

bool Precision::accept(const std::vector<torch::Tensor>& parameters) {
  if (!scaler_ || on_device_) return true;
  decision_ = scaler_->decide(unscale(parameters, scaler_->scale()));
  check(*decision_);
  return decision_->take_step;
}

void Precision::keep_scale_on_device() {
  if (scaler_) on_device_.emplace(device_, *scaler_);
}

void Precision::step_done(std::int64_t step) {
  if (on_device_) {
    on_device_->step_done(step);
  } else if (decision_) {
    decisions_.push_back({step, *decision_});
  }
}

std::vector<StepDecision> Precision::take_decisions(bool wait) {
  if (on_device_) {
    for (StepDecision& known : on_device_->take(wait)) decisions_.push_back(std::move(known));
    for (const StepDecision& known : decisions_) check(known.decision);
  }
  return std::exchange(decisions_, {});
}

void Precision::catch_up() {
  if (!on_device_) return;
  for (StepDecision& known : on_device_->take(/*wait=*/true)) {
    decisions_.push_back(std::move(known));
  }
}

void Precision::restored() {
  if (on_device_) on_device_->restored();
}

torch::ScalarType type_of(PrecisionOption precision) {
  static constexpr std::array types{torch::kFloat32, torch::kBFloat16, torch::kFloat16};
  return types[static_cast<std::size_t>(precision)];
}

std::string slow_precision_warning(PrecisionOption precision, torch::Device device) {
  if (!device.is_cpu() || precision == PrecisionOption::Fp32) return "";
  if (cpu_computes(precision)) return "";
  const bool bf16 = precision == PrecisionOption::Bf16;
  return fmt::format(
      "--precision {0}: this CPU has no instructions for {0} ({1}), so it will be slower than fp32",
      name_of(precision), bf16 ? "AVX512_BF16" : "AVX512_FP16");
}

}  // namespace ddprun::trainer
