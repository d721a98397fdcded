// Gradients that hold a few rows of a large parameter, and stay so: those of Embedding and
// EmbeddingBag with sparse(true).
//
//   rank 0: rows 3 9      all ranks: rows 1 3 9, each the sum of what the ranks have of it,
//   rank 1: rows 1 3                 in the order of the ranks: with the same bits everywhere
//
// Each rank's rows travel to all others, as over Gloo in PyTorch: it is worth while where they are
// a small part of the parameter.
#pragma once

#include <unordered_set>

#include "worker/communicator.h"
#include "worker/torch/libtorch.h"

namespace ddprun::worker {

// Of the module and those within it: the parameters of which their module's options say that the
// gradient is sparse.
std::unordered_set<const c10::TensorImpl*> parameters_with_sparse_gradients(
    const torch::nn::Module& module);

// Sum or average over the ranks of a parameter's sparse gradient, with each row once, ascending;
// an undefined one has no rows. Collective, on the CPU: waits for what is there on the host.
at::Tensor all_reduce_rows(Communicator& communicator, const at::Tensor& gradient,
                           const at::Tensor& parameter, ReduceOp op);

}  // namespace ddprun::worker
