// Norm and scaling stay on the device: a GPU is not waited for to learn that nothing is cut.
#include "trainer/optimizer/clip_gradients.h"

namespace ddprun::trainer {

torch::Tensor clip_gradients(const std::vector<torch::Tensor>& parameters, double norm_max) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  if (gradients.empty()) return torch::zeros({});
  const torch::Tensor norm = torch::stack(at::_foreach_norm(gradients, 2)).norm();
  const torch::Tensor scale = (norm_max / (norm + 1e-6)).clamp_max(1.0);
  // On the CPU the value is there: a gradient that is short enough costs no second pass.
  if (norm.is_cpu() && scale.item<double>() == 1) return norm;
  at::_foreach_mul_(gradients, scale);
  return norm;
}

}  // namespace ddprun::trainer
