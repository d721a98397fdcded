// Max-pooling that remembers a tap of one byte where LibTorch keeps an index of eight.
#include "trainer/models/stem_pool.h"

#include "trainer/kernels/max_pool_kernel.h"
#include "trainer/models/dense_memory.h"
#include "trainer/models/device_stem_pool.h"
#include "trainer/models/parallel_parts.h"

namespace ddprun::trainer {
namespace {

PoolGeometry pool_geometry(const torch::Tensor& x) { return {x.size(1), x.size(2), x.size(3)}; }

// work(n) for every image, by LibTorch's threads.
template <typename Work>
void for_each_image(const torch::Tensor& x, const Work& work) {
  run_parallel(x.size(0), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) work(n);
  });
}

class StemPool : public torch::autograd::Function<StemPool> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x) {
    const PoolGeometry geometry = pool_geometry(x);
    const bool last = is_channels_last(x);
    const auto shape = {x.size(0), x.size(1), geometry.pooled_height(), geometry.pooled_width()};
    torch::Tensor y = torch::empty(shape, x.options(), format_of(x));
    torch::Tensor taps = torch::empty(shape, torch::kUInt8, format_of(x));
    with_value_type(x, [&]<typename Value>(Value) {
      for_each_image(x, [&](std::int64_t n) {
        MaxPoolKernels<Value>::forward(geometry, last, values<Value>(x) + n * x.stride(0),
                                       values<Value>(y) + n * y.stride(0),
                                       taps.data_ptr<std::uint8_t>() + n * taps.stride(0));
      });
    });
    context->save_for_backward({taps});
    context->saved_data["height"] = geometry.height;
    context->saved_data["width"] = geometry.width;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::Tensor taps = context->get_saved_variables()[0];
    const torch::Tensor gradient = gradients[0].contiguous(format_of(taps));
    const PoolGeometry geometry{taps.size(1), context->saved_data["height"].toInt(),
                                context->saved_data["width"].toInt()};
    torch::Tensor gx = torch::empty({taps.size(0), taps.size(1), geometry.height, geometry.width},
                                    gradient.options(), format_of(taps));
    with_value_type(gx, [&]<typename Value>(Value) {
      for_each_image(gx, [&](std::int64_t n) {
        MaxPoolKernels<Value>::backward(geometry, is_channels_last(taps),
                                        values<Value>(gradient) + n * gradient.stride(0),
                                        taps.data_ptr<std::uint8_t>() + n * taps.stride(0),
                                        values<Value>(gx) + n * gx.stride(0));
      });
    });
    return {gx};
  }
};

}  // namespace

torch::Tensor stem_pool(const torch::Tensor& x) {
  if (uses_device_pool() && torch::GradMode::is_enabled() && device_pool_takes(x)) {
    return device_stem_pool(x);
  }
  if (torch::GradMode::is_enabled() && has_kernel_memory(x) && x.numel() > 0) {
    return StemPool::apply(x);
  }
  return torch::max_pool2d(x, 3, 2, 1);
}

}  // namespace ddprun::trainer
