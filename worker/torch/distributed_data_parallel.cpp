// What a forward must do first, and how the ranks' models are made equal.
#include "worker/torch/distributed_data_parallel.h"

#include <unordered_set>

namespace ddprun::worker {
namespace {

// Modules whose buffers are read in evaluation mode only.
bool keeps_running_statistics(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

// A parameter that two modules share has two names and one gradient.
std::vector<NamedTensor> distinct_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> parameters;
  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second)
      continue;
    parameters.push_back({item.key(), item.value()});
  }
  return parameters;
}

std::string describe_tensor(const char* kind, const std::string& name, const at::Tensor& tensor) {
  return c10::str(kind, " '", name, "' ", tensor.scalar_type(), " ", tensor.sizes(), " strides ",
                  tensor.strides(), tensor.requires_grad() ? "" : " without gradient");
}

}  // namespace

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module,
                                   Communicator& communicator, DataParallelOptions options)
    : module_(std::move(module)),
      communicator_(communicator),
      options_(std::move(options)),
      active_(communicator.world_size() > 1 || options_.reduce_world_of_one),
      parameters_(distinct_parameters(*module_)),
      buffer_broadcast_(communicator) {
  if (!active_) return;
  collect_buffers();
  std::vector<NamedTensor> trained;
  std::vector<at::Tensor> state;
  for (const NamedTensor& parameter : parameters_) {
    state.push_back(parameter.tensor);
    if (parameter.tensor.requires_grad()) trained.push_back(parameter);
  }
  state.insert(state.end(), buffers_.begin(), buffers_.end());
  const at::Device device =
      state.empty() ? at::Device(device_type_of(communicator)) : state.front().device();
  check_model_agreement(communicator, describe(), device);
  TensorBroadcast(communicator).run(state, 0);
  queue_ = options_.queue ? options_.queue : make_reduction_queue(communicator, device);
  reducer_ = std::make_unique<GradientReducer>(communicator, queue_, std::move(trained), options_);
}

void DataParallelCore::collect_buffers() {
  for (const auto& item : module_->named_modules()) {
    const auto own = item.value()->buffers(/*recurse=*/false);
    for (const at::Tensor& buffer : own) {
      if (!buffer.defined()) continue;
      buffers_.push_back(buffer);
      if (!keeps_running_statistics(*item.value())) only_running_statistics_ = false;
    }
  }
}

std::vector<std::string> DataParallelCore::describe() const {
  std::vector<std::string> lines;
  for (const NamedTensor& parameter : parameters_) {
    lines.push_back(describe_tensor("parameter", parameter.name, parameter.tensor));
  }
  for (const auto& item : module_->named_buffers()) {
    if (item.value().defined())
      lines.push_back(describe_tensor("buffer", item.key(), item.value()));
  }
  const BucketLimits limits = bucket_limits(communicator_, options_);
  lines.push_back(
      c10::str("options: buckets ", limits.first_bytes, " ", limits.bytes, " ", limits.last_bytes,
               ", find_unused_parameters ", options_.find_unused_parameters, ", static_graph ",
               options_.static_graph, ", broadcast_buffers ", options_.broadcast_buffers,
               ", bfloat16_gradients ", options_.bfloat16_gradients));
  return lines;
}

void DataParallelCore::before_forward() {
  if (!active_ || !synchronizes_) {
    if (module_->is_training()) buffers_differ_ = true;
    return;
  }
  if (at::GradMode::is_enabled()) reducer_->check_finished();
  if (!options_.broadcast_buffers || buffers_.empty()) return;
  if (!only_running_statistics_) {
    synchronize_buffers();
  } else if (module_->is_training()) {
    buffers_differ_ = true;
  } else if (buffers_differ_) {
    synchronize_buffers();
  }
}

void DataParallelCore::synchronize_buffers() {
  if (!active_) return;
  buffer_broadcast_.run(buffers_, 0);
  buffers_differ_ = false;
}

void DataParallelCore::set_synchronizes(bool synchronizes) {
  synchronizes_ = synchronizes;
  if (reducer_) reducer_->set_enabled(synchronizes);
}

void DataParallelCore::zero_grad(bool set_to_none) {
  if (reducer_) {
    reducer_->clear_gradients(set_to_none);
  } else {
    module_->zero_grad(set_to_none);
  }
}

void DataParallelCore::reduce_without_backward() {
  if (reducer_) reducer_->reduce_without_backward();
}

std::chrono::nanoseconds DataParallelCore::exposed_communication() const {
  return queue_ ? queue_->exposed() : std::chrono::nanoseconds{0};
}

}  // namespace ddprun::worker
