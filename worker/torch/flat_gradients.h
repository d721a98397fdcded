// The memory of all gradients: a few flat regions from the communicator, with a view per parameter
// that serves as its gradient. What is reduced is the memory the optimizer reads: nothing is copied
// back.
//
// Sparse gradients lie in no region: what their reduction has made becomes the gradient.
//
// A gradient that is undefined before backward (the default of zero_grad) is produced by
// autograd in memory of its own; adopt() moves it into its view, which costs one pass over memory
// that the last kernel has just written. That is half of what clearing the view first and adding
// into it costs. An operation that asks gradient_memory() for where to compute it spares that, too.
// A gradient that is a view already (accumulation) stays where it is.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/torch/communication_hook.h"
#include "worker/torch/gradient_buckets.h"
#include "worker/torch/libtorch.h"

namespace ddprun::worker {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool has_sparse_gradient = false;  // Of a parameter (sparse_gradients.h).
};

class FlatGradients {
 public:
  // Parameters must be distinct and require gradients. Collective (it allocates). Throws
  // std::invalid_argument, naming the parameter, for a dtype or device that cannot be reduced, and
  // where another object of this class has it: two would write to one gradient.
  FlatGradients(Communicator& communicator, std::vector<NamedTensor> parameters,
                const BucketLimits& limits);
  ~FlatGradients();
  FlatGradients(const FlatGradients&) = delete;
  FlatGradients& operator=(const FlatGradients&) = delete;

  std::size_t size() const { return parameters_.size(); }
  const std::string& name(std::size_t i) const { return parameters_[i].name; }
  const at::Tensor& parameter(std::size_t i) const { return parameters_[i].tensor; }
  const BucketPlan& plan() const { return plan_; }
  at::Device device() const { return device_; }

  // Makes the parameter's gradient its view, with the same values. Undefined stays undefined, and
  // the view's memory is cleared. A sparse gradient stays what it is. Throws std::invalid_argument
  // for a gradient that is sparse and should not be, or the other way round.
  void adopt(std::size_t i);

  bool is_defined(std::size_t i) const { return parameters_[i].tensor.grad().defined(); }

  bool is_sparse(std::size_t i) const { return parameters_[i].has_sparse_gradient; }
  // The sparse gradient that is all there is in the bucket, if it is such a one.
  std::optional<std::size_t> sparse_gradient_of(std::size_t bucket) const;
  // Where the reduction of a sparse gradient leaves what define() makes of it.
  at::Tensor& reduced(std::size_t i) { return reduced_[i]; }

  // Where an adopted gradient lies; not of a sparse one.
  const at::Tensor& view(std::size_t i) const { return views_[i]; }
  // Whether the parameter's gradient is that tensor.
  bool is_view(std::size_t i) const;

  // For gradient_memory(): a tensor of the view's memory in which the parameter's gradient may be
  // computed, once until adopt() or clear(). Undefined where that would overwrite something.
  at::Tensor lend(std::size_t i);

  // Makes the gradient undefined.
  void forget(std::size_t i);

  // Makes an undefined gradient defined, as its view; any sparse one what reduced() has.
  void define(std::size_t i);

  // Gives what define() will make of the gradient these values.
  void restore(std::size_t i, const at::Tensor& values);

  // Another order of reduction; gradients keep their values. Parameters that `order` leaves out
  // keep no memory: their gradients become tensors of their own.
  void reorder(const std::vector<std::size_t>& order);

  void clear(bool set_to_none);

  // Gives every gradient memory of its own, so that this object's can go.
  void release() noexcept;

  struct Span {
    void* data;
    std::size_t count;
    DataType type;
  };
  Span bucket(std::size_t index) const;

  // The same memory as tensors, for a hook; until reorder(). Whoever holds one of them does not
  // count as a holder of a gradient.
  const GradientBucket& bucket_of_tensors(std::size_t index, ReduceOp op);

 private:
  at::Tensor make_view(std::size_t i) const;
  void check_type(std::size_t i) const;
  void make_views();
  void leave_to_holders(std::size_t i);
  bool lies_in_view(std::size_t i) const;
  GradientBucket make_bucket(std::size_t index, ReduceOp op) const;

  std::vector<NamedTensor> parameters_;
  std::vector<GradientSize> sizes_;  // By parameter.
  BucketLimits limits_;
  at::Device device_{at::kCPU};
  BucketPlan plan_;
  std::vector<at::Tensor> regions_;  // Flat, one per dtype.
  std::vector<at::Tensor> views_;    // By parameter; undefined where the plan leaves it out.
  std::vector<at::Tensor> reduced_;  // By parameter; of sparse gradients.
  std::vector<char> lent_;           // By parameter.
  std::vector<std::optional<GradientBucket>> hook_buckets_;  // Those that were asked for.
};

}  // namespace ddprun::worker
