// How the gradients of a bucket travel in the place of its all-reduce: what PyTorch calls a
// communication hook. Ours are in hooks/.
//
//   class MyHook : public CommunicationHook { ... };
//   DataParallelOptions options;
//   options.communication_hook = std::make_shared<MyHook>();
//
// One object serves one wrapped module at a time. What it keeps of the communicator's memory must
// go before the communicator does: at the latest in give_back(), where it may outlive the wrapper.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::worker {

struct GradientBucket {
  struct Gradient {
    std::size_t parameter = 0;  // Its number among the parameters that require gradients.
    at::Tensor values;          // In the parameter's shape and strides: a part of the bucket.
  };

  // In the order of reduction. Another order may be settled after the first step, on all ranks
  // alike: then bucket 0 has other gradients, and another size.
  std::size_t index = 0;
  // Flat, with padding of zeros between gradients; complex ones as their two parts.
  at::Tensor values;
  std::vector<Gradient> gradients;
  ReduceOp op = ReduceOp::Average;  // What all ranks are to have: the average, or the sum.
};

class CommunicationHook {
 public:
  CommunicationHook() = default;
  virtual ~CommunicationHook() = default;
  CommunicationHook(const CommunicationHook&) = delete;
  CommunicationHook& operator=(const CommunicationHook&) = delete;

  // Makes of this rank's gradients, in place, what all ranks are to have: with the same bits on
  // all, or their weights go apart. Without a hook this is
  // all_reduce(communicator, bucket.values, bucket.op), of tensor_collectives.h. All ranks make the
  // same calls of the communicator in the same order. Called for one bucket after the other while
  // backward computes the rest. CPU: in the queue's thread. CUDA: in one of autograd's, with the
  // queue's stream as the current one; what is queued there is waited for, and the host must not
  // wait. Autograd records nothing. Sparse gradients are in no bucket that a hook sees.
  //
  // An exception aborts the communicator in its words, since the peers wait for this rank, and
  // leaves backward().
  virtual void reduce(const GradientBucket& bucket, Communicator& communicator) = 0;

  // Its name and settings, in which the ranks must agree: compared when the module is wrapped.
  virtual std::string description() const = 0;

  // Called when a module is wrapped with it, and when that wrapper has ended. False where it keeps
  // something for the parameters of one module, and has another one: that is refused.
  virtual bool take() noexcept { return true; }
  virtual void give_back() noexcept {}
};

}  // namespace ddprun::worker
