// Where an operation with a backward of its own may compute the gradient of a parameter.
//
// Autograd's operations compute gradients in memory of their own, and DistributedDataParallel
// copies them to where they are reduced. An operation that asks here writes there at once:
//
//   // In backward() of a torch::autograd::Function that saved the parameter in forward():
//   at::Tensor gradient = gradient_memory(weight);
//   at::mm_out(gradient, ...);
//   return {..., gradient};
#pragma once

#include <cstddef>

#include "worker/torch/libtorch.h"

namespace ddprun::worker {

class FlatGradients;

// Uninitialised memory like the parameter's, for one gradient, which must be returned from this
// backward. It is DistributedDataParallel's own when the parameter is one of a wrapped module, and
// the gradient is on its way to an undefined parameter.grad() for the first time in this backward;
// otherwise new memory, as for torch::autograd::grad(). Any thread of autograd's; on a GPU what
// writes there is queued on the current stream, which waits for the last reduction at its end.
// Who keeps the gradient over zero_grad(), or in a tensor hook, has it in other memory then.
at::Tensor gradient_memory(const at::Tensor& parameter);

// For FlatGradients: who lends the memory of this parameter's gradient, one at a time.
bool gradient_memory_is_lent(const at::Tensor& parameter);
void lend_gradient_memory(const at::Tensor& parameter, FlatGradients& owner, std::size_t index);
void stop_lending_gradient_memory(const at::Tensor& parameter, const FlatGradients& owner);

}  // namespace ddprun::worker
