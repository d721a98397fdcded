// Keeping replicas equal, splitting a batch, and joining what comes back.
#include "worker/torch/data_parallel.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "worker/torch/data_parallel_graph.h"
#include "worker/torch/replica_threads.h"

namespace ddprun::worker {
namespace {

// A parameter that two modules share has two names and is one tensor.
std::vector<at::Tensor> distinct(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  std::unordered_set<c10::TensorImpl*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      result.push_back(tensor);
    }
  }
  return result;
}

// This thread's, of each GPU.
std::vector<c10::Stream> current_streams(const std::vector<at::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const at::Device& device : devices) {
    if (device.is_cpu()) continue;
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return streams;
}

std::string name_of_replica(std::size_t replica) {
  return "DataParallel: replica " + std::to_string(replica);
}

void check_equal_counts(std::size_t first, std::size_t other, const char* kind,
                        std::size_t replica) {
  if (first == other) return;
  throw std::invalid_argument(name_of_replica(replica) + " has " + std::to_string(other) + " " +
                              kind + "s, the module has " + std::to_string(first));
}

void check_equal_shapes(const std::vector<at::Tensor>& first, const std::vector<at::Tensor>& other,
                        const char* kind, std::size_t replica) {
  check_equal_counts(first.size(), other.size(), kind, replica);
  for (std::size_t k = 0; k < first.size(); ++k) {
    if (first[k].sizes() == other[k].sizes() && first[k].scalar_type() == other[k].scalar_type())
      continue;
    throw std::invalid_argument(c10::str(
        name_of_replica(replica), " differs in ", kind, " ", k, ": ", other[k].scalar_type(), " ",
        other[k].sizes(), " instead of ", first[k].scalar_type(), " ", first[k].sizes()));
  }
}

int threads_per_replica(std::size_t replicas, bool cpu) {
  return cpu ? std::max(1, at::get_num_threads() / static_cast<int>(replicas)) : 0;
}

}  // namespace

DataParallelReplicas::Backward DataParallelReplicas::fastest_backward(
    const std::vector<at::Device>& devices) {
  const bool cpu = std::all_of(devices.begin(), devices.end(),
                               [](const at::Device& device) { return device.is_cpu(); });
  // Autograd has one thread for the CPU, in which the replicas would come one after the other.
  return cpu ? Backward::OwnThreads : Backward::Autograd;
}

DataParallelReplicas::DataParallelReplicas(std::vector<std::shared_ptr<torch::nn::Module>> replicas,
                                           std::vector<at::Device> devices, Backward backward)
    : replicas_(std::move(replicas)), devices_(std::move(devices)), backward_(backward) {
  if (devices_.empty() || devices_.size() != replicas_.size()) {
    throw std::invalid_argument("DataParallel: needs at least one device");
  }
  if (backward_ == Backward::OwnThreads && fastest_backward(devices_) != backward_) {
    throw std::invalid_argument(
        "DataParallel: backward in threads of its own is for replicas on the CPU only");
  }
  collect_tensors();
  threads_ = std::make_shared<ReplicaThreads>(
      replicas_.size(), threads_per_replica(replicas_.size(), devices_.front().is_cpu()));
}

DataParallelReplicas::~DataParallelReplicas() = default;

void DataParallelReplicas::collect_tensors() {
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    parameters_.push_back(distinct(replicas_[i]->parameters()));
    buffers_.push_back(distinct(replicas_[i]->buffers()));
    modules_.push_back(replicas_[i]->modules());
    check_equal_shapes(parameters_[0], parameters_[i], "parameter", i);
    check_equal_shapes(buffers_[0], buffers_[i], "buffer", i);
    check_equal_counts(modules_[0].size(), modules_[i].size(), "module", i);
    // In the graph a replica's parameter is no leaf: connect_copies() says where it comes from.
    for (at::Tensor& parameter : parameters_[i]) {
      if (i > 0) parameter.requires_grad_(false);
    }
  }
  for (const auto* tensors : {&parameters_[0], &buffers_[0]}) {
    for (const at::Tensor& tensor : *tensors) {
      if (tensor.device() == devices_[0]) continue;
      throw std::invalid_argument(
          c10::str("DataParallel: the module must lie on the first device, ", devices_[0],
                   ", and not on ", tensor.device()));
    }
  }
}

// Weights, buffers and modes as the module has them now.
void DataParallelReplicas::update_replicas() {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 1; i < replicas_.size(); ++i) {
    // Each module's own mode, parents first: a BatchNorm may be frozen in a module that trains.
    for (std::size_t k = 0; k < modules_[0].size(); ++k) {
      const bool training = modules_[0][k]->is_training();
      if (modules_[i][k]->is_training() != training) modules_[i][k]->train(training);
    }
    for (std::size_t k = 0; k < parameters_[0].size(); ++k) {
      const at::Tensor& original = parameters_[0][k];
      at::Tensor& copy = parameters_[i][k];
      if (backward_ == Backward::Autograd) {
        if (copy.strides() != original.strides()) {
          copy.set_data(at::empty_like(original, copy.options()));
        }
        copy.copy_(original, /*non_blocking=*/true);
      } else {
        const bool same =
            copy.data_ptr() == original.data_ptr() && copy.strides() == original.strides();
        if (!same) copy.set_data(original.detach());
        if (copy.requires_grad() != original.requires_grad()) {
          copy.requires_grad_(original.requires_grad());
        }
      }
    }
    // Below autograd, or the graph of an earlier forward could not be used any more, as that of the
    // module alone can. That its buffers are as they were is checked on replica 0: its are copied.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (std::size_t k = 0; k < buffers_[0].size(); ++k) {
      buffers_[i][k].copy_(buffers_[0][k], /*non_blocking=*/true);
    }
  }
}

int DataParallelReplicas::synchronize_batch_norms(BatchNormGroup group) {
  for (std::size_t i = 0; i < size() && backward_ == Backward::Autograd; ++i) {
    if (std::count(devices_.begin(), devices_.end(), devices_[i]) == 1) continue;
    throw std::invalid_argument(c10::str("DataParallel: replicas on one device, ", devices_[i],
                                         ", cannot normalise together with autograd's backward"));
  }
  if (size() > 1) group.meeting = threads_->meeting();
  int found = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    group.replica = i;
    found = worker::synchronize_batch_norms(*replicas_[i], group);
  }
  return found;
}

at::Tensor DataParallelReplicas::run(const at::Tensor& input, const Forward& forward) {
  if (replicas_.size() == 1) return forward(0, input);
  update_replicas();
  return backward_ == Backward::OwnThreads ? run_in_threads(input, forward)
                                           : run_in_graph(input, forward);
}

at::Tensor DataParallelReplicas::run_in_threads(const at::Tensor& input, const Forward& forward) {
  ReplicaOutputs made;
  // Each part is a leaf: its replica's graph must end there, for that backward runs in the
  // replica's thread and not in the engine call that will run JoinedBackward.
  const bool input_gradient = at::GradMode::is_enabled() && input.requires_grad();
  for (const at::Tensor& part : input.detach().chunk(static_cast<std::int64_t>(size()), 0)) {
    made.parts.push_back(part.detach().requires_grad_(input_gradient));
  }
  made.outputs.resize(made.parts.size());
  threads_->run(made.parts.size(),
                [&](std::size_t i) { made.outputs[i] = forward(i, made.parts[i]); });
  for (std::size_t i = 0; i < made.parts.size(); ++i) {
    std::vector<at::Tensor>& trained = made.inputs.emplace_back();
    for (std::size_t k = 0; k < parameters_[0].size(); ++k) {
      if (parameters_[0][k].requires_grad()) trained.push_back(parameters_[i][k]);
    }
  }
  const std::vector<at::Tensor> own = made.inputs.front();
  return join_outputs(threads_, std::move(made), input, own);
}

at::Tensor DataParallelReplicas::run_in_graph(const at::Tensor& input, const Forward& forward) {
  const std::vector<at::Tensor> parts = input.chunk(static_cast<std::int64_t>(size()), 0);
  if (at::GradMode::is_enabled()) {
    for (std::size_t k = 0; k < parameters_[0].size(); ++k) {
      if (!parameters_[0][k].requires_grad()) continue;
      std::vector<at::Tensor> copies;
      for (std::size_t i = 1; i < parts.size(); ++i) copies.push_back(parameters_[i][k]);
      connect_copies(parameters_[0][k], copies);
    }
  }
  std::vector<at::Tensor> outputs(parts.size());
  const std::vector<c10::Stream> streams = current_streams(devices_);
  threads_->run(parts.size(), [&](std::size_t i) {
    const c10::MultiStreamGuard as_the_caller(streams);  // Whose work comes before and after.
    const c10::OptionalDeviceGuard device(devices_[i]);
    outputs[i] = forward(i, parts[i].to(devices_[i], /*non_blocking=*/true)).to(devices_[0]);
  });
  return at::cat(outputs);
}

}  // namespace ddprun::worker
