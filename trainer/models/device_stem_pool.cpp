// What the kernels are given: memory of LibTorch's, which its allocator keeps for the stream.
#include "trainer/models/device_stem_pool.h"

#include <atomic>
#include <cstdint>

#include "trainer/kernels/device/on_device.h"

namespace ddprun::trainer {
namespace {

std::atomic<bool> used_by_stem{false};

constexpr auto pool_layout = torch::MemoryFormat::ChannelsLast;

// The sides are those before pooling: two of them come to the same one after it, so backward cannot
// know them from its gradient.
PoolShape pool_shape(const torch::Tensor& like, std::int64_t height, std::int64_t width) {
  return {.images = like.size(0),
          .height = static_cast<std::int32_t>(height),
          .width = static_cast<std::int32_t>(width),
          .channels = static_cast<std::int32_t>(like.size(1))};
}

class DeviceStemPool : public torch::autograd::Function<DeviceStemPool> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x) {
    const PoolShape shape = pool_shape(x, x.size(2), x.size(3));
    const auto pooled = {x.size(0), x.size(1), std::int64_t{shape.pooled_height()},
                         std::int64_t{shape.pooled_width()}};
    const torch::Tensor y = torch::empty(pooled, x.options(), pool_layout);
    const torch::Tensor taps = torch::empty(pooled, x.options().dtype(torch::kUInt8), pool_layout);
    const OnDevice on(x.device());
    run_kernel(step_kernels(x.is_cuda()).pool_forward,
               PoolForward{.shape = shape,
                           .format = number_format_of(x),
                           .x = x.data_ptr(),
                           .y = y.data_ptr(),
                           .taps = pointer_to<std::uint64_t>(taps)},
               on.stream());
    context->save_for_backward({taps});  // And not x, which is four times as large as y.
    context->saved_data["height"] = x.size(2);
    context->saved_data["width"] = x.size(3);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::Tensor taps = context->get_saved_variables()[0];
    torch::Tensor gradient = gradients[0].contiguous(pool_layout);
    // A part of a larger tensor may begin anywhere, and the kernel reads 16 bytes at a time.
    if (!is_aligned(gradient)) gradient = gradient.clone();
    const std::int64_t height = context->saved_data["height"].toInt();
    const std::int64_t width = context->saved_data["width"].toInt();
    const torch::Tensor x_gradient =
        torch::empty({taps.size(0), taps.size(1), height, width}, gradient.options(), pool_layout);
    const OnDevice on(gradient.device());
    run_kernel(step_kernels(gradient.is_cuda()).pool_backward,
               PoolBackward{.shape = pool_shape(taps, height, width),
                            .format = number_format_of(gradient),
                            .gradient = gradient.data_ptr(),
                            .taps = pointer_to<const std::uint64_t>(taps),
                            .x_gradient = x_gradient.data_ptr()},
               on.stream());
    return {x_gradient};
  }
};

}  // namespace

void use_device_pool(bool used) { used_by_stem = used; }
bool uses_device_pool() { return used_by_stem; }

bool device_pool_takes(const torch::Tensor& x) {
  return has_number_format(x) && x.dim() == 4 && x.numel() > 0 && x.size(1) % vector_numbers == 0 &&
         x.is_contiguous(pool_layout) && is_aligned(x);
}

torch::Tensor device_stem_pool(const torch::Tensor& x) { return DeviceStemPool::apply(x); }

}  // namespace ddprun::trainer
