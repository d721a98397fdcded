// A registry by parameter: an operation knows its weight, and not who reduces its gradient.
#include "worker/torch/gradient_memory.h"

#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <unordered_map>

#include "worker/torch/flat_gradients.h"

namespace ddprun::worker {
namespace {

struct Lender {
  FlatGradients* owner;
  std::size_t index;
};

struct Lenders {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Lender> by_parameter;
};

Lenders& lenders() {
  // Never destroyed: a module that is wrapped in a global variable ends after what it has made.
  static auto* const all = new Lenders;
  return *all;
}

// Not for torch::autograd::grad() or backward(inputs), whose gradients may go elsewhere.
bool accumulates_everywhere() {
  const auto* const chosen = torch::autograd::get_current_graph_task_exec_info();
  return chosen != nullptr && chosen->empty() && !at::GradMode::is_enabled();
}

}  // namespace

at::Tensor gradient_memory(const at::Tensor& parameter) {
  if (accumulates_everywhere()) {
    Lenders& all = lenders();
    const std::lock_guard lock(all.mutex);
    const auto found = all.by_parameter.find(parameter.unsafeGetTensorImpl());
    if (found != all.by_parameter.end()) {
      at::Tensor lent = found->second.owner->lend(found->second.index);
      if (lent.defined()) return lent;
    }
  }
  return at::empty_like(parameter, parameter.options().requires_grad(false));
}

bool gradient_memory_is_lent(const at::Tensor& parameter) {
  Lenders& all = lenders();
  const std::lock_guard lock(all.mutex);
  return all.by_parameter.contains(parameter.unsafeGetTensorImpl());
}

void lend_gradient_memory(const at::Tensor& parameter, FlatGradients& owner, std::size_t index) {
  Lenders& all = lenders();
  const std::lock_guard lock(all.mutex);
  all.by_parameter[parameter.unsafeGetTensorImpl()] = {&owner, index};
}

void stop_lending_gradient_memory(const at::Tensor& parameter, const FlatGradients& owner) {
  Lenders& all = lenders();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_parameter.find(parameter.unsafeGetTensorImpl());
  if (found != all.by_parameter.end() && found->second.owner == &owner) {
    all.by_parameter.erase(found);
  }
}

}  // namespace ddprun::worker
