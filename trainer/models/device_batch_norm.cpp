// What the kernels are given: memory of LibTorch's, which its allocator keeps for the stream.
#include "trainer/models/device_batch_norm.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "trainer/kernels/device/on_device.h"
#include "worker/torch/gradient_memory.h"

namespace ddprun::trainer {
namespace {

std::atomic<bool> used_by_all{false};

constexpr auto channels_last = torch::MemoryFormat::ChannelsLast;

NormGeometry geometry_of(const torch::Tensor& x) {
  return norm_geometry(x.numel() / x.size(1), static_cast<std::int32_t>(x.size(1)));
}

torch::Tensor floats_like(const torch::Tensor& x, torch::IntArrayRef shape) {
  return torch::empty(shape, torch::dtype(torch::kFloat32).device(x.device()));
}

template <typename T>
T* pointer_or_null(const torch::Tensor& tensor) {
  return tensor.defined() ? pointer_to<T>(tensor) : nullptr;
}

// The sums of the parts, before they are added up.
torch::Tensor partial_sums(const torch::Tensor& x, const NormGeometry& geometry) {
  return floats_like(x, {geometry.parts, 2, geometry.channels});
}

struct Normalized {
  torch::Tensor y, mask, statistics;
};

Normalized normalize(torch::nn::BatchNorm2dImpl& module, const torch::Tensor& x,
                     const torch::Tensor& shortcut, bool relu) {
  const NormGeometry geometry = geometry_of(x);
  const OnDevice on(x.device());
  Normalized result{
      .y = torch::empty_like(x), .mask = {}, .statistics = floats_like(x, {4, geometry.channels})};
  if (relu) {
    result.mask = torch::empty({geometry.rows, geometry.channels / vector_numbers},
                               x.options().dtype(torch::kUInt8));
  }
  const torch::Tensor partial = partial_sums(x, geometry);
  run_kernel(step_kernels(x.is_cuda()).norm_forward,
             NormForward{.geometry = geometry,
                         .format = number_format_of(x),
                         .relu = relu ? 1 : 0,
                         .x = x.data_ptr(),
                         .shortcut = pointer_or_null<void>(shortcut),
                         .weight = module.weight.data_ptr<float>(),
                         .bias = module.bias.data_ptr<float>(),
                         .epsilon = module.options.eps(),
                         .momentum = *module.options.momentum(),
                         .running_mean = module.running_mean.data_ptr<float>(),
                         .running_variance = module.running_var.data_ptr<float>(),
                         .batches = module.num_batches_tracked.data_ptr<std::int64_t>(),
                         .partial = partial.data_ptr<float>(),
                         .statistics = result.statistics.data_ptr<float>(),
                         .y = result.y.data_ptr(),
                         .mask = pointer_or_null<std::uint8_t>(result.mask)},
             on.stream());
  return result;
}

// Undefined stays so.
torch::Tensor readable(torch::Tensor gradient, const torch::Tensor& x) {
  if (!gradient.defined()) return gradient;
  gradient = gradient.to(x.scalar_type()).contiguous(channels_last);
  return is_aligned(gradient) ? gradient : gradient.clone();
}

class DeviceBatchNorm : public torch::autograd::Function<DeviceBatchNorm> {
 public:
  // y, and y once more for another reader, so that backward is given the gradient of each.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const torch::Tensor& x, const torch::Tensor& weight,
                                                const torch::Tensor& bias,
                                                const std::optional<torch::Tensor>& shortcut,
                                                torch::nn::BatchNorm2dImpl* module, bool relu) {
    const Normalized done = normalize(*module, x, shortcut.value_or(torch::Tensor()), relu);
    context->save_for_backward({x, weight, bias, done.statistics, done.mask});
    context->saved_data["has_shortcut"] = shortcut.has_value();
    // Zeros for a reader that there is not would be one more gradient to add.
    context->set_materialize_grads(false);
    return {done.y, done.y.detach()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &weight = saved[1], &statistics = saved[3], &mask = saved[4];
    torch::Tensor gradient = readable(gradients[0], x), other = readable(gradients[1], x);
    if (!gradient.defined()) std::swap(gradient, other);
    const bool has_shortcut = context->saved_data["has_shortcut"].toBool();
    const NormGeometry geometry = geometry_of(x);
    const OnDevice on(x.device());
    const torch::Tensor x_gradient = torch::empty_like(x);
    const torch::Tensor weight_gradient = worker::gradient_memory(weight);
    const torch::Tensor bias_gradient = worker::gradient_memory(saved[2]);
    torch::Tensor g;
    if (other.defined() || (has_shortcut && mask.defined())) g = torch::empty_like(x);
    torch::Tensor shortcut_gradient;
    if (has_shortcut) shortcut_gradient = g.defined() ? g : gradient;
    const torch::Tensor partial = partial_sums(x, geometry);
    const torch::Tensor factors = floats_like(x, {3, geometry.channels});
    run_kernel(step_kernels(x.is_cuda()).norm_backward,
               NormBackward{.geometry = geometry,
                            .format = number_format_of(x),
                            .gradient = gradient.data_ptr(),
                            .other_gradient = pointer_or_null<void>(other),
                            .x = x.data_ptr(),
                            .mask = pointer_or_null<std::uint8_t>(mask),
                            .statistics = statistics.data_ptr<float>(),
                            .weight = weight.data_ptr<float>(),
                            .partial = partial.data_ptr<float>(),
                            .factors = factors.data_ptr<float>(),
                            .weight_gradient = weight_gradient.data_ptr<float>(),
                            .bias_gradient = bias_gradient.data_ptr<float>(),
                            .x_gradient = x_gradient.data_ptr(),
                            .g = pointer_or_null<void>(g)},
               on.stream());
    return {x_gradient, weight_gradient, bias_gradient, shortcut_gradient, {}, {}};
  }
};

}  // namespace

void use_device_norms(bool used) { used_by_all = used; }
bool uses_device_norms() { return used_by_all; }

bool device_norm_takes(const torch::Tensor& x, const torch::Tensor& shortcut) {
  const auto fits = [](const torch::Tensor& tensor) {
    return tensor.is_contiguous(channels_last) && is_aligned(tensor);
  };
  if (!has_number_format(x) || x.dim() != 4 || x.size(1) % vector_numbers != 0 || !fits(x))
    return false;
  return !shortcut.defined() ||
         (shortcut.sizes() == x.sizes() && shortcut.scalar_type() == x.scalar_type() &&
          shortcut.device() == x.device() && fits(shortcut));
}

Activation device_batch_norm(torch::nn::BatchNorm2dImpl& module, const torch::Tensor& x,
                             const torch::Tensor& shortcut, bool relu) {
  // Autograd takes no undefined tensors, but nothing for one.
  const auto added = shortcut.defined() ? std::optional(shortcut) : std::nullopt;
  const auto results = DeviceBatchNorm::apply(x, module.weight, module.bias, added, &module, relu);
  return {results[0], results[1]};
}

}  // namespace ddprun::trainer
