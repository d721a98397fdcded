// Stochastic gradient descent with momentum, in one fused pass over each parameter.
//
//   g <- grad + weight_decay * w;   v <- momentum * v + g (v = g on a parameter's first step);
//   w <- w - lr * v                 the rule of torch.optim.SGD, in the same order
//   w <- w - lr * (g + momentum * v)    with nesterov
//
// With `lars` each layer has a rate of its own (lars.h), in two more passes.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/optimizer/fused_sgd.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

struct LarsOptions {
  double trust = 0.001;
  std::set<std::string> not_adapted;  // Parameters that take the plain rate.
};

struct SgdOptions {
  double momentum = 0.9;
  double weight_decay = 1e-4;
  bool nesterov = false;           // Needs momentum.
  std::set<std::string> no_decay;  // Parameters without weight decay.
  std::optional<LarsOptions> lars;
  bool own_kernel = false;  // FusedSgd's in the place of LibTorch's. Without LARS.
};

class Sgd {
 public:
  // Keeps references to `parameters`; their storage must not be replaced afterwards.
  Sgd(const std::vector<std::pair<std::string, torch::Tensor>>& parameters, SgdOptions options);

  // Parameters without a gradient are left alone.
  // `loss_scale`: as FusedSgd has it; only with own_kernel. `rate_there`: a scalar of float32 in
  // the device's memory that is taken for the learning rate; undefined, or only with own_kernel.
  void step(double learning_rate, const torch::Tensor& loss_scale = {},
            const torch::Tensor& rate_there = {});

  // (parameter, copy in 16 bits): from now on a step writes the new weights there too. Only with
  // own_kernel.
  void write_copies(const std::vector<std::pair<torch::Tensor, torch::Tensor>>& copies);
  bool writes_copies() const { return options_.own_kernel; }

  // As FusedSgd has it; only with own_kernel.
  void begin_recording() { fused_.begin_recording(); }
  void end_recording() { fused_.end_recording(); }

  // (parameter name, momentum buffer) of every parameter that has been updated; they share memory
  // with the optimizer. Empty without momentum.
  std::vector<std::pair<std::string, torch::Tensor>> momentum_buffers() const;

  // Continues from buffers saved before; parameters left out start anew. The names must be of
  // parameters and the shapes fit: otherwise both throw std::invalid_argument naming the one that
  // does not, and nothing is changed.
  void load_momentum_buffers(const std::vector<std::pair<std::string, torch::Tensor>>& buffers);
  void check_momentum_buffers(
      const std::vector<std::pair<std::string, torch::Tensor>>& buffers) const;

 private:
  struct Slot {
    std::string name;
    torch::Tensor parameter;
    torch::Tensor momentum;  // Undefined until the first step.
    torch::Tensor copy;      // Undefined where none is written.
    bool decays;
    bool adapts;  // To LARS's rate.
  };
  std::size_t index_of(const std::string& name) const;  // Throws std::invalid_argument.
  void update(const std::vector<Slot*>& slots, double learning_rate, bool first_step);
  void step_by_own_kernel(double learning_rate, const torch::Tensor& loss_scale,
                          const torch::Tensor& rate_there);

  std::vector<Slot> slots_;
  SgdOptions options_;
  FusedSgd fused_;
};

}  // namespace ddprun::trainer
