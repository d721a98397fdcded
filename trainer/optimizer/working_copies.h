// Copies of the weights in 16 bits, which a step in bfloat16 or float16 computes with
// (--working-copies).
//
// Autocast makes such a copy of each weight in every forward, and turns each copy's gradient back
// into float32 in every backward: a ResNet-50 has 55 of them, so 110 short kernels a step. Here
// all copies are made by one kernel, or by the optimizer's own, which has each new weight in its
// registers anyway; and gradients are turned back by one kernel for some megabytes of them.
//
//   WorkingCopies copies(*model, torch::kHalf);
//   {
//     const auto use = copies.use();
//     loss = ...;                        // Layers find the copies in the place of their weights.
//   }
//   loss.backward();                     // Gradients arrive at the weights, in float32.
//
// Losses and gradients have autocast's bits, but for convolutions that go Winograd's way on the CPU
// (trainer/models/winograd_conv.h): from a copy these have 16 bits of a weight, else all.
#pragma once

#include <utility>
#include <vector>

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

class WorkingCopies {
 public:
  // Of all convolutions and linear layers of `model`, with their biases: what autocast would give
  // its type. Their weights are float32, dense, and stay where they are. `type`: kHalf, kBFloat16.
  WorkingCopies(torch::nn::Module& model, torch::ScalarType type);

  // While it lives, the layers have the copies in the place of their weights, within the graph of
  // this thread; the module's parameters() are the weights as ever. Of one forward, and it goes
  // before whoever made it.
  class [[nodiscard]] Use {
   public:
    explicit Use(WorkingCopies& copies) : copies_(copies) { copies_.put_in(); }
    ~Use() { copies_.take_out(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    WorkingCopies& copies_;
  };
  Use use() { return Use(*this); }

  // (weight, its copy), for an optimizer that writes both.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> all() const;

  // The weights have changed: the copies with them, or not.
  void weights_changed(bool copies_too) { are_current_ = copies_too; }

 private:
  struct Entry {
    torch::Tensor* place;  // The layer's own member.
    torch::Tensor weight, copy;
  };
  void put_in();
  void take_out() noexcept;
  void make_current();

  // Each in one kernel, and one node of autograd: the later layers first, as backward comes by.
  std::vector<std::vector<Entry>> groups_;
  bool are_current_ = false;
};

}  // namespace ddprun::trainer
