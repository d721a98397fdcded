// The autograd nodes of DataParallel; only data_parallel.cpp includes this.
#pragma once

#include <memory>
#include <vector>

#include "worker/torch/libtorch.h"
#include "worker/torch/replica_threads.h"

namespace ddprun::worker {

// What the replicas' threads computed from their parts of a batch. Each output has a graph of its
// own, which ends at that replica's inputs.
struct ReplicaOutputs {
  std::vector<at::Tensor> outputs;              // By replica.
  std::vector<at::Tensor> parts;                // Of the input, detached; by replica.
  std::vector<std::vector<at::Tensor>> inputs;  // By replica: parameters that require gradients.
};

// One tensor of all outputs whose backward runs the replicas' in the threads, and hands autograd
// the sums over replicas as the gradients of `input` and of `parameters` (those of replica 0, the
// same number as in `inputs`).
at::Tensor join_outputs(const std::shared_ptr<ReplicaThreads>& threads, ReplicaOutputs outputs,
                        const at::Tensor& input, const std::vector<at::Tensor>& parameters);

// Makes each copy, which must not require gradients by itself, part of the graph: what flows back
// to the copies is added up on the device of `parameter` and flows on to it.
void connect_copies(const at::Tensor& parameter, const std::vector<at::Tensor>& copies);

}  // namespace ddprun::worker
