// An exponential moving average of a model's weights, which often validates better than the
// weights themselves:  average <- decay * average + (1 - decay) * weights, after each step.
//
// As torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay) and use_buffers=True:
// the first update copies. Floating buffers (running statistics) are averaged too, others copied.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

class ModelAverage {
 public:
  // `model` must outlive it, and keep its tensors. 0 <= decay < 1.
  ModelAverage(torch::nn::Module& model, double decay);

  void update();

  // (name in the model, average), parameters first; they share memory with the average.
  std::vector<std::pair<std::string, torch::Tensor>> tensors() const;

  bool started() const { return started_; }  // An update has been made, or loaded.
  void set_started(bool started) { started_ = started; }

  // While it lives, the model holds the average, and tensors() the weights. No training meanwhile.
  class [[nodiscard]] Swap {
   public:
    explicit Swap(ModelAverage& average) : average_(average) { average_.swap(); }
    ~Swap() { average_.swap(); }
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;

   private:
    ModelAverage& average_;
  };

 private:
  struct Entry {
    std::string name;
    torch::Tensor source;
    torch::Tensor average;
  };
  void swap();

  std::vector<Entry> entries_;
  std::vector<torch::Tensor> floating_sources_;  // In pairs with floating_averages_.
  std::vector<torch::Tensor> floating_averages_;
  double decay_;
  bool started_ = false;
};

}  // namespace ddprun::trainer
