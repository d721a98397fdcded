// Ends training at the step whose loss is not a number, and says which samples it came from.
//
// On the CPU a loss is looked at in its step. On CUDA the host must not wait for it: the loss is
// copied beside the computation and looked at when it has come, a few steps later at most.
#pragma once

#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "trainer/training_error.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Where a loss comes from.
struct LossOrigin {
  std::int64_t step = 0;              // Of the run, this one included.
  std::int64_t epoch = 0;             // Those done; people count from 1.
  std::vector<std::int64_t> samples;  // Indices into the training set; empty = not known.
};

// The words of the error.
std::string bad_loss_message(int rank, double loss, const LossOrigin& origin);

class LossGuard {
 public:
  explicit LossGuard(int rank) : rank_(rank) {}

  // loss: a scalar. Throws BadLossError for it (CPU) or for an earlier one (CUDA).
  void watch(const torch::Tensor& loss, LossOrigin origin);

  // Looks at all that are left, waiting for the device. Before a checkpoint, and at the end.
  void finish();

 private:
  struct Pending {
    torch::Tensor on_host;  // Pinned.
    c10::Event copied;
    LossOrigin origin;
  };
  void check(const torch::Tensor& loss, const LossOrigin& origin) const;
  void check_first();

  int rank_;
  std::deque<Pending> pending_;
};

}  // namespace ddprun::trainer
