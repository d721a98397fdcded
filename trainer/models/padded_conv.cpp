// Which of three ways computes a convolution; to the caller it is a torch::nn::Conv2d.
#include "trainer/models/padded_conv.h"

#include <ATen/autocast_mode.h>

#include <atomic>

#include "trainer/models/winograd_conv.h"
#include "worker/torch/gradient_memory.h"

namespace ddprun::trainer {
namespace {

// Of the process, as LibTorch's own switches of algorithms are: modules are made in many places,
// and replicas of --data-parallel compute in threads.
std::atomic<bool> winograd_allowed{true};

// The only tap of (out, in, k, k) that meets a value: (out, in), a view. Its rows are dense in
// channels-last weights.
torch::Tensor middle_tap(const torch::Tensor& weight) {
  const std::int64_t middle = weight.size(2) / 2;
  return weight.select(3, middle).select(2, middle);
}

bool is_under_autocast(const torch::Tensor& x) {
  return at::autocast::is_autocast_enabled(x.device().type());
}

// What autocast would make of the input of a convolution; it leaves double precision alone.
torch::Tensor as_autocast(const torch::Tensor& x) {
  if (!is_under_autocast(x) || x.scalar_type() == torch::kFloat64) return x;
  return x.to(at::autocast::get_autocast_dtype(x.device().type()));
}

// For what has the types that autocast would give it.
template <typename Work>
torch::Tensor without_autocast(const Work& work) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(at::autocast_dispatch_keyset);
  return work();
}

// Images of one pixel: (N, in) to (N, out).
class PixelConv : public torch::autograd::Function<PixelConv> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight) {
    torch::Tensor tap = middle_tap(weight).to(x.scalar_type());
    if (tap.stride(1) != 1) tap = tap.contiguous();  // Here and not in each product.
    context->save_for_backward({x, weight, tap});
    return at::mm(x, tap.t());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor& x = saved[0];
    const torch::Tensor& weight = saved[1];
    const torch::Tensor& gy = gradients[0];
    torch::Tensor gx, gw;
    if (context->needs_input_grad(0)) gx = at::mm(gy, saved[2]);
    if (context->needs_input_grad(1)) {
      // Zeroed as a whole: the other eight taps have gradient 0, and the memory holds an earlier
      // step's.
      gw = worker::gradient_memory(weight).zero_();
      torch::Tensor tap = middle_tap(gw);
      if (tap.stride(1) == 1 && gw.scalar_type() == gy.scalar_type()) {
        at::mm_out(tap, gy.t(), x);
      } else {
        tap.copy_(at::mm(gy.t(), x));
      }
    }
    return {gx, gw};
  }
};

}  // namespace

torch::Tensor PaddedConv::forward(const torch::Tensor& x) {
  if (weight.size(2) == 1) return Conv2dImpl::forward(x);
  const torch::Tensor input = as_autocast(x);
  if (x.size(2) == 1 && x.size(3) == 1) {
    const torch::Tensor pixels = input.flatten(1);
    const torch::Tensor y = without_autocast([&] { return PixelConv::apply(pixels, weight); });
    return y.unsqueeze(2).unsqueeze(3);
  }
  // Outside of autocast LibTorch refuses two types; so does this, whatever the size.
  const bool types_fit = is_under_autocast(x) || x.scalar_type() == weight.scalar_type();
  if (winograd_allowed && types_fit && options.stride()->at(0) == 1 &&
      winograd_pays(input, weight)) {
    return without_autocast([&] { return winograd_conv(input, weight); });
  }
  return Conv2dImpl::forward(input);
}

void allow_winograd(bool allowed) { winograd_allowed = allowed; }

}  // namespace ddprun::trainer
