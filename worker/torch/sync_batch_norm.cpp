// Statistics by reduction; normalisation by the kernels of BatchNorm in evaluation mode, which take
// mean and variance as given.
#include "worker/torch/sync_batch_norm.h"

#include <tuple>
#include <utility>

#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// All dimensions but that of the channels.
std::vector<std::int64_t> summed_dimensions(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t i = 2; i < input.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

// [C] as what is multiplied with each channel of an input.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

void sum_over_ranks(const BatchNormGroup& group, at::Tensor& values) {
  if (group.world_size == 1) return;
  group.queue->all_reduce(values.data_ptr(), static_cast<std::size_t>(values.numel()),
                          data_type_of(values.scalar_type(), "batch statistics"), ReduceOp::Sum);
  group.queue->wait();
}

struct Statistics {
  at::Tensor mean;      // [C], float or double.
  at::Tensor variance;  // [C], biased.
  at::Tensor count;     // Scalar double: values per channel, over all ranks.
};

// What `combine` makes of the values of this rank's replicas, or of the one that there is.
at::Tensor over_replicas(const BatchNormGroup& group, std::size_t parties, const at::Tensor& values,
                         const ReplicaMeeting::Combine& combine) {
  if (!group.meeting) return combine({values});
  return group.meeting->meet(group.replica, parties, values, combine).to(values.device());
}

// On the device of replica 0, whose thread reduces.
at::Tensor stacked(const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> near;
  for (const at::Tensor& value : values) near.push_back(value.to(values.front().device()));
  return at::stack(near);
}

// [2C + 1] of double: means, biased variances, and how many values per channel they are of.
at::Tensor statistics_row(const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  const std::int64_t count = input.numel() / channels;
  at::Tensor row = at::zeros({2 * channels + 1}, input.options().dtype(at::kDouble));
  if (count == 0) return row;
  const at::Tensor wide = input.scalar_type() == at::kDouble ? input : input.to(at::kFloat);
  const auto [variance, mean] = at::var_mean(wide, summed_dimensions(input), /*correction=*/0);
  row.narrow(0, 0, channels).copy_(mean);
  row.narrow(0, channels, channels).copy_(variance);
  row[2 * channels].fill_(static_cast<double>(count));
  return row;
}

// The row of all values that the rows of a table are of; zeros if these are none.
at::Tensor combined_row(const at::Tensor& table) {
  const std::int64_t channels = (table.size(1) - 1) / 2;
  const at::Tensor means = table.narrow(1, 0, channels);
  const at::Tensor counts = table.narrow(1, 2 * channels, 1);
  const at::Tensor total = counts.sum();
  const at::Tensor mean = (means * counts).sum(0) / total;
  const at::Tensor deviation = table.narrow(1, channels, channels) + (means - mean).square();
  const at::Tensor row = at::cat({mean, (deviation * counts).sum(0) / total, total.view(1)});
  return at::where(total > 0, row, at::zeros_like(row));  // A rank without images has 0 / 0.
}

// Every rank fills its own row of a table of zeros; the sum of the tables is everybody's
// statistics.
at::Tensor gather_rows(const BatchNormGroup& group, const std::vector<at::Tensor>& replicas) {
  const at::Tensor own = replicas.size() == 1 ? replicas.front() : combined_row(stacked(replicas));
  if (group.world_size == 1) return own;
  at::Tensor table = at::zeros({group.world_size, own.numel()}, own.options());
  table[group.rank].copy_(own);
  sum_over_ranks(group, table);
  return combined_row(table);
}

Statistics gather_statistics(const BatchNormGroup& group, std::size_t parties,
                             const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  const std::int64_t count = input.numel() / channels;
  const at::Tensor row =
      over_replicas(group, parties, statistics_row(input),
                    [&](const std::vector<at::Tensor>& all) { return gather_rows(group, all); });
  const at::Tensor total = row[2 * channels];
  // Two values here are two values over all ranks, which saves waiting for a device.
  TORCH_CHECK(count > 1 || total.item<double>() > 1,
              "sync_batch_norm needs more than one value per channel over all ranks in "
              "training mode, got input ",
              input.sizes(), " on rank ", group.rank);
  const at::ScalarType type = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {row.narrow(0, 0, channels).to(type), row.narrow(0, channels, channels).to(type), total};
}

// Autograd asks each tensor that a function is given for its device, which an undefined one lacks.
std::optional<at::Tensor> where_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const Statistics& statistics,
                            double eps, const BatchNormGroup& group, std::int64_t parties) {
    context->save_for_backward({input, weight.value_or(at::Tensor()), statistics.mean,
                                statistics.variance, statistics.count});
    context->saved_data["eps"] = eps;
    context->saved_data["parties"] = parties;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<HeldGroup>(group));
    if (input.numel() == 0) return at::empty_like(input);  // The kernels divide by the size.
    return std::get<0>(at::native_batch_norm(input, weight, bias, statistics.mean,
                                             statistics.variance, /*training=*/false,
                                             /*momentum=*/0, eps));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    // What follows would be differentiated as it stands, without the sums over the ranks.
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "second derivatives through SyncBatchNorm are not there: call backward without "
                "create_graph, or use BatchNorm");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    const at::Tensor& count = saved[4];
    const double eps = context->saved_data["eps"].toDouble();
    const at::Tensor invstd = (variance + eps).rsqrt();
    const at::Tensor dy = gradients[0].contiguous(input.suggest_memory_format());
    // sum(dy * (x - mean)) * invstd and sum(dy), of this replica.
    at::Tensor weight_gradient = at::zeros_like(mean);
    at::Tensor bias_gradient = at::zeros_like(mean);
    if (input.numel() > 0) {
      // Without a weight CUDA's kernels give no sums. Which weight it is changes none of them.
      const at::Tensor any_weight = weight.defined() ? weight : at::ones_like(mean);
      std::tie(std::ignore, weight_gradient, bias_gradient) =
          at::native_batch_norm_backward(dy, input, any_weight, mean, variance, mean, invstd,
                                         /*train=*/false, eps, {false, true, true});
    }

    const auto held = context->saved_data["group"].toCapsule();
    const BatchNormGroup& group = static_cast<const HeldGroup&>(*held).group;
    const at::Tensor sums =
        over_replicas(group, static_cast<std::size_t>(context->saved_data["parties"].toInt()),
                      at::stack({bias_gradient, weight_gradient}).to(mean.scalar_type()),
                      [&](const std::vector<at::Tensor>& all) {
                        at::Tensor sum = all.size() == 1 ? all.front() : stacked(all).sum(0);
                        sum_over_ranks(group, sum);
                        return sum.div_(count.to(sum.device()));
                      });

    // dx = scale * (dy - mean(dy) - (x - mean) * invstd * mean(dy * (x - mean) * invstd)), with the
    // terms of x and of the channel alone taken together.
    const at::Tensor scale = weight.defined() ? invstd * weight : invstd;
    const at::Tensor of_x = scale * invstd * sums[1];
    const at::Tensor of_channel = of_x * mean - scale * sums[0];
    const at::Tensor dx = (dy * per_channel(scale, input) - input * per_channel(of_x, input))
                              .add_(per_channel(of_channel, input))
                              .to(input.scalar_type());
    return {dx,
            weight.defined() ? weight_gradient : at::Tensor(),
            weight.defined() ? bias_gradient : at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }

 private:
  struct HeldGroup : torch::CustomClassHolder {
    explicit HeldGroup(BatchNormGroup held) : group(std::move(held)) {}
    const BatchNormGroup group;
  };
};

// The new running statistics, as BatchNorm computes them: with the unbiased variance.
void update_running(const BatchNormParts& parts, const Statistics& statistics) {
  if (!parts.options.track_running_stats()) return;
  const at::NoGradGuard no_grad;
  parts.num_batches_tracked.add_(1);
  const double momentum = parts.options.momentum().has_value()
                              ? *parts.options.momentum()
                              : 1.0 / parts.num_batches_tracked.item<double>();
  const at::Tensor& count = statistics.count;
  parts.running_mean.lerp_(statistics.mean.to(parts.running_mean.scalar_type()), momentum);
  parts.running_var.lerp_(
      (statistics.variance * (count / (count - 1))).to(parts.running_var.scalar_type()), momentum);
}

}  // namespace

at::Tensor normalize_over_ranks(const BatchNormParts& parts, const at::Tensor& input,
                                const BatchNormGroup& group) {
  const std::size_t parties = group.meeting ? group.meeting->parties() : 1;
  Statistics statistics;
  {
    const at::NoGradGuard no_grad;
    statistics = gather_statistics(group, parties, input);
    update_running(parts, statistics);
  }
  return SyncBatchNormFunction::apply(input, where_defined(parts.weight), where_defined(parts.bias),
                                      statistics, parts.options.eps(), group,
                                      static_cast<std::int64_t>(parties));
}

std::string shape_text(std::size_t dimensions, std::int64_t channels) {
  const std::string begin = c10::str("[N, ", channels);
  if (dimensions == 1) return begin + "] or " + begin + ", L]";
  return begin + (dimensions == 2 ? ", H, W]" : ", D, H, W]");
}

int synchronize_batch_norms(torch::nn::Module& model, const BatchNormGroup& group) {
  int found = 0;
  for (const auto& module : model.modules()) {
    auto* const norm = dynamic_cast<BatchNormOfGroup*>(module.get());
    if (norm == nullptr) continue;
    norm->set_group(group);
    ++found;
  }
  return found;
}

}  // namespace ddprun::worker
