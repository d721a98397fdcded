// SGD over all parameters in one launch of our own kernel (--fused-optimizer), which reads the loss
// scale and whether there was an overflow on the device, so that the host need not know.
#pragma once

#include <vector>

#include "trainer/kernels/device/step_kernels.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Both lie in memory element by element alike. Strides of sides of length 1 say nothing: a gradient
// of a 1 x 1 convolution often has others than the weight.
bool same_order(const torch::Tensor& a, const torch::Tensor& b);

class FusedSgd {
 public:
  // On one device and in the same dense order; float32 but for the copies, which have one type.
  struct Slot {
    torch::Tensor weight, gradient;
    torch::Tensor momentum;  // Undefined without momentum.
    torch::Tensor copy;      // The new weight in 16 bits goes there too; undefined: nowhere.
    double decay = 0;
    bool first_step = false;  // Of this parameter.
  };
  struct Rule {
    double momentum = 0;
    bool nesterov = false;
    double learning_rate = 0;
    const float* learning_rate_at = nullptr;  // Where the rate is in the device's memory; or null.
  };

  // `loss_scale`: a LossScale in the device's memory, by which gradients are divided, and which
  // goes on to the next step; undefined: gradients are as they are. Returns the pass over the
  // parameters that it queued.
  SgdPass step(const std::vector<Slot>& slots, const Rule& rule, const torch::Tensor& loss_scale);

  // In between, step() is recorded and not done (step_graph.h), and nothing can be copied to the
  // device: the recorded pass has a table of its own, which is empty until the end. So there must
  // have been a step before, of the same parameters; their gradients may lie elsewhere.
  void begin_recording();
  void end_recording();

 private:
  struct Tables {
    std::vector<SgdSegment> segments;  // As the device has them.
    torch::Tensor segment_table, chunk_table;
    std::int64_t chunk_count = 0;
  };
  const Tables& describe(const std::vector<Slot>& slots, torch::Device device);

  Tables tables_;    // Of steps that are done when they are queued.
  Tables recorded_;  // Of the one that is recorded.
  bool recording_ = false;
};

}  // namespace ddprun::trainer
