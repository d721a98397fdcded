// The work on each tensor is cut into parts by its shape alone, so that the sums have the same bits
// for any number of threads.
#include "trainer/models/batch_norm_relu.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/kernels/batch_norm_kernel.h"
#include "trainer/models/dense_memory.h"
#include "trainer/models/device_batch_norm.h"
#include "trainer/models/parallel_parts.h"

namespace ddprun::trainer {
namespace {

constexpr std::int64_t outer_parts_max = 16;
constexpr std::int64_t part_values_min = 1 << 15;

using Numbers = std::vector<double>;  // One per channel.

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

BatchGeometry geometry_of(const torch::Tensor& x) {
  const std::int64_t plane = x.size(2) * x.size(3);
  if (is_channels_last(x)) return {x.size(0) * plane, x.size(1), 1};
  return {x.size(0), x.size(1), plane};
}

// The same shape in the same order of memory, so that element i of both is the same place.
bool matches(const torch::Tensor& other, const torch::Tensor& x) {
  return other.sizes() == x.sizes() && other.scalar_type() == x.scalar_type() &&
         other.is_contiguous(format_of(x));
}

// The kernels' step: the batch's own statistics, which the running ones take up.
bool is_plain_training(const worker::SyncBatchNorm2dImpl& module, const torch::Tensor& x) {
  return module.is_training() && !module.is_synchronized() &&
         module.options.track_running_stats() && module.options.momentum().has_value() &&
         module.weight.defined() && module.weight.scalar_type() == torch::kFloat32 &&
         x.dim() == 4 && x.size(1) == module.options.num_features() && x.numel() / x.size(1) > 1;
}

bool host_kernels_take(const torch::Tensor& x, const torch::Tensor& shortcut) {
  return has_kernel_memory(x) && (!shortcut.defined() || matches(shortcut, x));
}

// work(part, range) over the parts of `outer`.
class Parts {
 public:
  explicit Parts(const BatchGeometry& geometry)
      : outer_(geometry.outer),
        count_(std::clamp<std::int64_t>(
            geometry.outer * geometry.channels * geometry.inner / part_values_min, 1,
            std::min(outer_parts_max, geometry.outer))) {}

  std::int64_t count() const { return count_; }

  template <typename Work>
  void run(const Work& work) const {
    run_parallel(count_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        work(part, OuterRange{outer_ * part / count_, outer_ * (part + 1) / count_});
      }
    });
  }

  // The sums of work(range, first, second) over all parts, in the order of the parts.
  template <typename Work>
  std::pair<Numbers, Numbers> sum(std::int64_t channels, const Work& work) const {
    const std::size_t n = index(channels);
    Numbers parts(2 * n * index(count_));
    run([&](std::int64_t part, OuterRange range) {
      double* first = parts.data() + 2 * n * index(part);
      work(range, first, first + n);
    });
    std::pair<Numbers, Numbers> total{Numbers(n), Numbers(n)};
    for (std::size_t part = 0; part < index(count_); ++part) {
      for (std::size_t c = 0; c < n; ++c) {
        total.first[c] += parts[2 * n * part + c];
        total.second[c] += parts[2 * n * part + n + c];
      }
    }
    return total;
  }

 private:
  std::int64_t outer_;
  std::int64_t count_;
};

// Of one batch: what backward needs.
struct Statistics {
  torch::Tensor mean;     // (C) float
  torch::Tensor inverse;  // (C) float: 1 / sqrt(variance + eps)
};

// The batch's statistics; the module's running ones take them up.
Statistics gather_statistics(worker::SyncBatchNorm2dImpl& module, const torch::Tensor& x) {
  const BatchGeometry geometry = geometry_of(x);
  const std::int64_t channels = geometry.channels;
  std::vector<float> center(index(channels));
  std::pair<Numbers, Numbers> sums;
  with_value_type(x, [&]<typename Value>(Value) {
    const auto* data = values<Value>(x);
    // Sums around one of the channel's own values: around 0, squares would lose the variance in a
    // large mean.
    for (std::int64_t c = 0; c < channels; ++c) center[index(c)] = load(data[c * geometry.inner]);
    sums = Parts(geometry).sum(channels, [&](OuterRange range, double* first, double* second) {
      BatchNormForward<Value>::add_sums(geometry, range, data, center.data(), first, second);
    });
  });

  Statistics statistics{torch::empty({channels}), torch::empty({channels})};
  auto* mean = statistics.mean.data_ptr<float>();
  auto* inverse = statistics.inverse.data_ptr<float>();
  auto* running_mean = module.running_mean.data_ptr<float>();
  auto* running_variance = module.running_var.data_ptr<float>();
  const auto count = static_cast<double>(geometry.outer * geometry.inner);
  const double momentum = *module.options.momentum();
  for (std::size_t c = 0; c < index(channels); ++c) {
    const double from_center = sums.first[c] / count;
    const double squares = sums.second[c] - sums.first[c] * from_center;
    const double exact_mean = center[c] + from_center;
    // std::max would turn NaN into 0, and hide that the network diverged.
    const double variance = squares < 0 ? 0 : squares / count;
    mean[c] = static_cast<float>(exact_mean);
    inverse[c] = static_cast<float>(1 / std::sqrt(variance + module.options.eps()));
    running_mean[c] = static_cast<float>((1 - momentum) * running_mean[c] + momentum * exact_mean);
    running_variance[c] = static_cast<float>((1 - momentum) * running_variance[c] +
                                             momentum * variance * count / (count - 1));
  }
  module.num_batches_tracked += 1;
  return statistics;
}

torch::Tensor normalize(const torch::Tensor& x, const Statistics& statistics,
                        const torch::Tensor& weight, const torch::Tensor& bias,
                        const torch::Tensor& shortcut, bool relu) {
  const BatchGeometry geometry = geometry_of(x);
  const torch::Tensor scale = weight * statistics.inverse;
  const torch::Tensor shift = bias - statistics.mean * scale;
  const auto* scales = scale.data_ptr<float>();
  const auto* shifts = shift.data_ptr<float>();
  torch::Tensor y = torch::empty_like(x);
  with_value_type(x, [&]<typename Value>(Value) {
    Parts(geometry).run([&](std::int64_t, OuterRange range) {
      BatchNormForward<Value>::normalize(geometry, range, values<Value>(x), scales, shifts,
                                         values<Value>(shortcut), relu, values<Value>(y));
    });
  });
  return y;
}

struct Gradients {
  torch::Tensor x, weight, bias, shortcut;
};

// `y` is undefined without ReLU. The gradient of the shortcut is that of y where y > 0.
Gradients differentiate(torch::Tensor gradient, const torch::Tensor& y, const torch::Tensor& x,
                        const Statistics& statistics, const torch::Tensor& weight,
                        bool has_shortcut) {
  const BatchGeometry geometry = geometry_of(x);
  const Parts parts(geometry);
  Gradients result;
  if (has_shortcut) result.shortcut = y.defined() ? torch::empty_like(x) : gradient;
  torch::Tensor masked = has_shortcut && y.defined() ? result.shortcut : torch::Tensor();
  std::pair<Numbers, Numbers> sums;
  with_value_type(x, [&]<typename Value>(Value) {
    sums = parts.sum(geometry.channels, [&](OuterRange range, double* first, double* second) {
      BatchNormBackward<Value>::add_gradient_sums(
          geometry, range, values<Value>(gradient), values<Value>(y), values<Value>(x),
          statistics.mean.data_ptr<float>(), values<Value>(masked), first, second);
    });
  });

  result.weight = torch::empty({geometry.channels});
  result.bias = torch::empty({geometry.channels});
  std::vector<float> a(index(geometry.channels));
  std::vector<float> b(a);
  std::vector<float> k(a);
  const auto count = static_cast<double>(geometry.outer * geometry.inner);
  for (std::size_t c = 0; c < a.size(); ++c) {
    const double inverse = statistics.inverse.data_ptr<float>()[c];
    const double scale = inverse * weight.data_ptr<float>()[c];
    const double of_x = -scale * inverse * inverse * sums.second[c] / count;
    result.weight.data_ptr<float>()[c] = static_cast<float>(sums.second[c] * inverse);
    result.bias.data_ptr<float>()[c] = static_cast<float>(sums.first[c]);
    a[c] = static_cast<float>(scale);
    b[c] = static_cast<float>(of_x);
    k[c] = static_cast<float>(-scale * sums.first[c] / count -
                              of_x * statistics.mean.data_ptr<float>()[c]);
  }

  result.x = torch::empty_like(x);
  const torch::Tensor& g = masked.defined() ? masked : gradient;
  const torch::Tensor mask = masked.defined() ? torch::Tensor() : y;
  with_value_type(x, [&]<typename Value>(Value) {
    parts.run([&](std::int64_t, OuterRange range) {
      BatchNormBackward<Value>::input_gradient(geometry, range, values<Value>(g),
                                               values<Value>(mask), values<Value>(x), a.data(),
                                               b.data(), k.data(), values<Value>(result.x));
    });
  });
  return result;
}

class BatchNormRelu : public torch::autograd::Function<BatchNormRelu> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight, const torch::Tensor& bias,
                               const std::optional<torch::Tensor>& shortcut,
                               const Statistics& statistics, bool relu) {
    const torch::Tensor y =
        normalize(x, statistics, weight, bias, shortcut.value_or(torch::Tensor()), relu);
    context->save_for_backward(
        {x, weight, statistics.mean, statistics.inverse, relu ? y : torch::Tensor()});
    context->saved_data["has_shortcut"] = shortcut.has_value();
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor& x = saved[0];
    const torch::Tensor gradient = gradients[0].to(x.scalar_type()).contiguous(format_of(x));
    const bool has_shortcut = context->saved_data["has_shortcut"].toBool();
    const Gradients result =
        differentiate(gradient, saved[4], x, {saved[2], saved[3]}, saved[1], has_shortcut);
    return {result.x, result.weight, result.bias, result.shortcut, {}, {}};
  }
};

// For one reader as for two.
Activation read_by_both(const torch::Tensor& y) { return {y, y}; }

Activation apply(worker::SyncBatchNorm2dImpl& module, const torch::Tensor& x,
                 const torch::Tensor& shortcut, bool relu) {
  const bool plain = is_plain_training(module, x);
  if (plain && uses_device_norms() && device_norm_takes(x, shortcut)) {
    return device_batch_norm(module, x, shortcut, relu);
  }
  if (plain && host_kernels_take(x, shortcut)) {
    const Statistics statistics = [&] {
      const torch::NoGradGuard no_grad;
      return gather_statistics(module, x.detach());
    }();
    // Autograd takes no undefined tensors, but nothing for one.
    const auto added = shortcut.defined() ? std::optional(shortcut) : std::nullopt;
    return read_by_both(
        BatchNormRelu::apply(x, module.weight, module.bias, added, statistics, relu));
  }
  torch::Tensor y = module.forward(x);
  if (shortcut.defined()) y += shortcut;
  return read_by_both(relu ? y.relu_() : y);
}

}  // namespace

Activation batch_norm_relu(worker::SyncBatchNorm2dImpl& module, const torch::Tensor& x,
                           const torch::Tensor& shortcut) {
  return apply(module, x, shortcut, /*relu=*/true);
}

torch::Tensor batch_norm(worker::SyncBatchNorm2dImpl& module, const torch::Tensor& x) {
  return apply(module, x, {}, /*relu=*/false).first;
}

}  // namespace ddprun::trainer
