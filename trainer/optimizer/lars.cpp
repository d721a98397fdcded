// Norms of all layers by two foreach calls, so that no layer's rate costs the host a wait.
#include "trainer/optimizer/lars.h"

namespace ddprun::trainer {

std::vector<torch::Tensor> lars_updates(const std::vector<torch::Tensor>& parameters,
                                        const std::vector<torch::Tensor>& gradients, double rate,
                                        double trust, double decay) {
  const torch::Tensor weight_norms = torch::stack(at::_foreach_norm(parameters, 2));
  const torch::Tensor gradient_norms = torch::stack(at::_foreach_norm(gradients, 2));
  const torch::Tensor adapted = trust * weight_norms / (gradient_norms + decay * weight_norms);
  const torch::Tensor factors =
      rate * torch::where((weight_norms > 0).logical_and(gradient_norms > 0), adapted,
                          torch::ones_like(adapted));
  std::vector<torch::Tensor> updates = at::_foreach_add(gradients, parameters, decay);
  at::_foreach_mul_(updates, factors.unbind());
  return updates;
}

std::vector<torch::Tensor> plain_updates(const std::vector<torch::Tensor>& parameters,
                                         const std::vector<torch::Tensor>& gradients, double rate,
                                         double decay) {
  std::vector<torch::Tensor> updates = at::_foreach_add(gradients, parameters, decay);
  at::_foreach_mul_(updates, rate);
  return updates;
}

}  // namespace ddprun::trainer
