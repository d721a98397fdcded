// Which layers have copies, in groups; and the node of autograd that stands between the weights of
// a group and its copies.
#include "trainer/optimizer/working_copies.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "trainer/kernels/device/on_device.h"
#include "trainer/optimizer/fused_sgd.h"
#include "worker/torch/gradient_memory.h"

namespace ddprun::trainer {
namespace {

// A group's gradients go on when the last of them is there. One group would keep all of the
// exchange between ranks until the end of backward; this is a third of a bucket.
constexpr std::size_t group_bytes_max = 8 << 20;

void cast_all(const std::vector<CastSegment>& segments, const torch::Tensor& from,
              const torch::Tensor& to) {
  const OnDevice on(from.device());
  run_kernel(step_kernels(from.is_cuda()).cast,
             cast_pass(segments, number_format_of(from), number_format_of(to)), on.stream());
}

// From the weights of a group to its copies.
class CopiesOf : public torch::autograd::Function<CopiesOf> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                at::TensorList weights,
                                                const torch::autograd::variable_list* copies) {
    context->save_for_backward(weights.vec());
    // A layer that this forward did not come to has no gradient, and must not be given one.
    context->set_materialize_grads(false);
    torch::autograd::variable_list results;
    // Autograd marks what it is given: others than the tensors that stay.
    for (const torch::Tensor& copy : *copies) results.push_back(copy.detach());
    return results;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list weights = context->get_saved_variables();
    torch::autograd::variable_list results(weights.size() + 1);  // The last: of `copies`.
    std::vector<CastSegment> segments;
    std::size_t any = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      torch::Tensor& gradient = gradients[i];
      if (!gradient.defined()) continue;
      results[i] = worker::gradient_memory(weights[i]);
      if (!same_order(gradient, results[i])) {
        gradient = torch::empty_like(results[i], gradient.options()).copy_(gradient);
      }
      segments.push_back({gradient.data_ptr(), results[i].data_ptr(), gradient.numel()});
      any = i;
    }
    if (!segments.empty()) cast_all(segments, gradients[any], results[any]);
    return results;
  }
};

// The members of a layer that autocast casts.
std::vector<torch::Tensor*> cast_members(torch::nn::Module& layer) {
  std::vector<torch::Tensor*> members;
  if (auto* const conv = layer.as<torch::nn::Conv2dImpl>()) {
    members = {&conv->weight, &conv->bias};
  } else if (auto* const linear = layer.as<torch::nn::LinearImpl>()) {
    members = {&linear->weight, &linear->bias};
  }
  std::erase_if(members, [](const torch::Tensor* member) { return !member->defined(); });
  return members;
}

}  // namespace

WorkingCopies::WorkingCopies(torch::nn::Module& model, torch::ScalarType type) {
  std::size_t bytes = 0;  // Of the last group.
  auto layers = model.modules();
  std::reverse(layers.begin(), layers.end());
  for (const auto& layer : layers) {
    for (torch::Tensor* const member : cast_members(*layer)) {
      const torch::Tensor weight = member->detach();
      if (groups_.empty() || bytes + weight.nbytes() > group_bytes_max ||
          groups_.back().size() == static_cast<std::size_t>(cast_segments_max)) {
        groups_.emplace_back();
        bytes = 0;
      }
      groups_.back().push_back({member, *member, torch::empty_like(weight, type)});
      bytes += weight.nbytes();
    }
  }
}

std::vector<std::pair<torch::Tensor, torch::Tensor>> WorkingCopies::all() const {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> pairs;
  for (const auto& group : groups_) {
    for (const Entry& entry : group) pairs.emplace_back(entry.weight, entry.copy);
  }
  return pairs;
}

void WorkingCopies::make_current() {
  if (are_current_) return;
  const auto pairs = all();
  for (std::size_t begin = 0; begin < pairs.size(); begin += cast_segments_max) {
    std::vector<CastSegment> segments;
    const std::size_t end = std::min<std::size_t>(begin + cast_segments_max, pairs.size());
    for (std::size_t i = begin; i < end; ++i) {
      const auto& [weight, copy] = pairs[i];
      segments.push_back({weight.data_ptr(), copy.data_ptr(), weight.numel()});
    }
    cast_all(segments, pairs[begin].first, pairs[begin].second);
  }
  are_current_ = true;
}

void WorkingCopies::put_in() {
  make_current();
  std::vector<torch::autograd::variable_list> results;
  for (const auto& group : groups_) {
    torch::autograd::variable_list weights, copies;
    for (const Entry& entry : group) {
      weights.push_back(entry.weight);
      copies.push_back(entry.copy);
    }
    // Autograd looks for inputs in lists of this type, and in no vector.
    results.push_back(CopiesOf::apply(at::TensorList(weights), &copies));
  }
  // Once nothing can fail any more: a layer must not be left with a copy.
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (std::size_t i = 0; i < groups_[group].size(); ++i) {
      *groups_[group][i].place = results[group][i];
    }
  }
}

void WorkingCopies::take_out() noexcept {
  for (const auto& group : groups_) {
    for (const Entry& entry : group) *entry.place = entry.weight;
  }
}

}  // namespace ddprun::trainer
