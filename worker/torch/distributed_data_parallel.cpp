// What a forward must do first, and how the ranks' models are made equal.
#include "worker/torch/distributed_data_parallel.h"

#include <ATen/MemoryOverlap.h>

#include <typeinfo>
#include <unordered_set>

#include "worker/progress_page.h"
#include "worker/torch/sparse_gradients.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::worker {
namespace {

// Modules whose buffers are read in evaluation mode only. Not those derived from them, which may
// read them in training (batch renormalisation does); SyncBatchNorms are ours and do not.
bool keeps_running_statistics(const torch::nn::Module& module) {
  const std::type_info& type = typeid(module);
  return type == typeid(torch::nn::BatchNorm1dImpl) || type == typeid(torch::nn::BatchNorm2dImpl) ||
         type == typeid(torch::nn::BatchNorm3dImpl) || type == typeid(SyncBatchNorm1dImpl) ||
         type == typeid(SyncBatchNorm2dImpl) || type == typeid(SyncBatchNorm3dImpl);
}

// A parameter that two modules share has two names and one gradient.
std::vector<NamedTensor> distinct_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> parameters;
  const auto sparse = parameters_with_sparse_gradients(module);
  std::unordered_set<c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second)
      continue;
    parameters.push_back(
        {item.key(), item.value(),
         item.value().requires_grad() && sparse.contains(item.value().unsafeGetTensorImpl())});
  }
  return parameters;
}

// `written`: rank 0's is to be written to it.
void check_layout(const char* kind, const NamedTensor& tensor, bool written,
                  const std::string& other_way) {
  const at::Tensor& memory = tensor.tensor;
  if (memory.layout() != at::kStrided) {
    if (!written) return;
    throw std::invalid_argument(c10::str(
        kind, " '", tensor.name, "' has the layout ", memory.layout(),
        ", and only dense tensors can become rank 0's: register ", "to_dense() of it", other_way));
  }
  if (at::has_internal_overlap(memory) != at::MemOverlap::Yes) return;
  throw std::invalid_argument(c10::str(
      kind, " '", tensor.name, "' has several elements in one place of memory, ", memory.sizes(),
      " with strides ", memory.strides(), ": register contiguous() of it"));
}

void check_sparse(const NamedTensor& parameter, const Communicator& communicator,
                  const ReducerOptions& options) {
  if (!parameter.has_sparse_gradient) return;
  const std::string dense = communicator.is_cuda()      ? "over NCCL"
                            : options.sum               ? "with sum"
                            : options.complete_gradient ? "with complete_gradient"
                                                        : "";
  if (dense.empty()) return;
  throw std::invalid_argument("parameter '" + parameter.name + "' has a sparse gradient, and " +
                              dense + " gradients are dense: make its module with sparse(false)");
}

std::string describe_tensor(const char* kind, const std::string& name, const at::Tensor& tensor) {
  const std::string layout = tensor.layout() == at::kStrided
                                 ? agreement_line("strides ", tensor.strides())
                                 : agreement_line("layout ", tensor.layout());
  return agreement_line(kind, " '", name, "' ", tensor.scalar_type(), " ", tensor.sizes(), " ",
                        layout, tensor.requires_grad() ? "" : " without gradient");
}

std::shared_ptr<torch::nn::Module> not_null(std::shared_ptr<torch::nn::Module> module) {
  if (module) return module;
  throw std::invalid_argument("DistributedDataParallel: the module to wrap is a null pointer");
}

}  // namespace

DistributedDataParallelBase::DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module,
                                                         Communicator& communicator,
                                                         DataParallelOptions options)
    : module_(not_null(std::move(module))),
      communicator_(communicator),
      options_(std::move(options)),
      active_(communicator.world_size() > 1 || options_.reduce_world_of_one ||
              options_.complete_gradient),
      parameters_(distinct_parameters(*module_)),
      buffer_broadcast_(communicator) {
  if (!active_) return;
  take_hook();
  collect_buffers();
  std::vector<NamedTensor> trained;
  std::vector<at::Tensor> state;
  for (const NamedTensor& parameter : parameters_) {
    state.push_back(parameter.tensor);
    (parameter.tensor.requires_grad() ? trained : frozen_).push_back(parameter);
  }
  state.insert(state.end(), buffers_.begin(), buffers_.end());
  const at::Device device =
      state.empty() ? at::Device(device_type_of(communicator)) : state.front().device();
  // Before anything of the model travels: other sizes would end in an error that names a call, and
  // not the parameter.
  check_model_agreement(communicator, describe(), device);
  check_layouts();
  // A broadcast of its own, whose staging memory, as large as the model, goes with it.
  if (options_.init_sync) TensorBroadcast(communicator).run(state, 0);
  const auto queue_use =
      options_.queue ? GradientReducer::QueueUse::Shared : GradientReducer::QueueUse::Alone;
  queue_ = options_.queue ? options_.queue : reduction_queue_of(communicator, device);
  reducer_ = std::make_unique<GradientReducer>(communicator, queue_, queue_use, std::move(trained),
                                               options_);
}

void DistributedDataParallelBase::take_hook() {
  const auto& hook = options_.communication_hook;
  if (!hook) return;
  if (!hook->take()) {
    throw std::invalid_argument(
        "the communication hook (" + hook->description() +
        ") serves another wrapped module, and keeps what belongs to the parameters of that one: "
        "give each module a hook of its own");
  }
  hook_use_ = {hook.get(), [hook](CommunicationHook* taken) { taken->give_back(); }};
}

void DistributedDataParallelBase::collect_buffers() {
  bool others = false;
  for (const auto& item : module_->named_modules()) {
    const auto own = item.value()->buffers(/*recurse=*/false);
    bool any = false;
    for (const at::Tensor& buffer : own) {
      if (!buffer.defined() || buffer.layout() != at::kStrided) continue;
      buffers_.push_back(buffer);
      any = true;
    }
    if (!any) continue;
    if (keeps_running_statistics(*item.value())) {
      norms_.push_back(item.value());
    } else {
      others = true;
    }
  }
  buffer_schedule_ = BufferSchedule(norms_.size(), others);
}

// What rank 0 has could not be written to them, or what they get not be reduced.
void DistributedDataParallelBase::check_layouts() const {
  for (const NamedTensor& parameter : parameters_) {
    check_layout("parameter", parameter, options_.init_sync, "");
    check_sparse(parameter, communicator_, options_);
  }
  const bool writes = options_.init_sync || options_.broadcast_buffers;
  for (const auto& item : module_->named_buffers()) {
    if (!item.value().defined()) continue;
    check_layout("buffer", {item.key(), item.value()}, writes,
                 ", or leave buffers alone by broadcast_buffers = false and init_sync = false");
  }
}

std::vector<std::string> DistributedDataParallelBase::describe() const {
  std::vector<std::string> lines;
  for (const NamedTensor& parameter : parameters_) {
    lines.push_back(describe_tensor("parameter", parameter.name, parameter.tensor) +
                    (parameter.has_sparse_gradient ? ", its gradient sparse" : ""));
  }
  for (const auto& item : module_->named_buffers()) {
    if (item.value().defined())
      lines.push_back(describe_tensor("buffer", item.key(), item.value()));
  }
  const BucketLimits limits = bucket_limits(communicator_, options_);
  lines.push_back(agreement_line(
      "options: buckets ", limits.first_bytes, " ", limits.bytes, " ", limits.last_bytes,
      ", find_unused_parameters ", options_.find_unused_parameters, ", static_graph ",
      options_.static_graph, ", broadcast_buffers ", options_.broadcast_buffers, ", init_sync ",
      options_.init_sync, ", communication_hook ",
      options_.communication_hook ? options_.communication_hook->description() : "none", ", sum ",
      options_.sum));
  return lines;
}

void DistributedDataParallelBase::before_forward() {
  ProgressPage::own().computes();
  if (!active_) return;
  const bool reduces = synchronizes() && at::GradMode::is_enabled();
  if (reduces) {
    check_frozen();
    reducer_->expect_backward();
  } else if (at::GradMode::is_enabled()) {
    reducer_->follow_parameters();
  }
  follow_schedule(reduces);
}

void DistributedDataParallelBase::check_frozen() {
  for (const NamedTensor& parameter : frozen_) {
    if (!parameter.tensor.requires_grad()) continue;
    const std::string message =
        "rank " + std::to_string(communicator_.rank()) + ": parameter '" + parameter.name +
        "' requires a gradient, and did not when the module was wrapped, so nobody would reduce "
        "it: wrap the module after it is unfrozen";
    throw_unreduced(communicator_, message);
  }
}

void DistributedDataParallelBase::follow_schedule(bool reduces) {
  if (!options_.broadcast_buffers) return;
  std::vector<bool> in_training;
  for (const auto& norm : norms_) in_training.push_back(norm->is_training());
  if (buffer_schedule_.before_forward(in_training, reduces)) synchronize_buffers();
}

void DistributedDataParallelBase::synchronize_buffers() {
  if (!active_) return;
  reducer_->let_queue_end();
  // Whether another rank missed a forward is known to that rank alone.
  buffer_broadcast_.run_from_smallest(
      buffers_, communicator_.rank() + (missed_forward_ ? communicator_.world_size() : 0));
  missed_forward_ = false;
  buffer_schedule_.were_sent();
}

void reduce_without_backward(const std::vector<DistributedDataParallelBase*>& forwards) {
  for (DistributedDataParallelBase* ddp : forwards) {
    if (!ddp->active_) continue;
    ddp->follow_schedule(ddp->synchronizes());
    ddp->missed_forward_ = true;
  }
  // Backward comes to the last forward first (reduction_turns.h).
  for (auto ddp = forwards.rbegin(); ddp != forwards.rend(); ++ddp) {
    if ((*ddp)->active_ && (*ddp)->synchronizes()) (*ddp)->reducer_->reduce_without_backward();
  }
}

void DistributedDataParallelBase::count_no_sync(int more) {
  no_syncs_ += more;
  if (reducer_) reducer_->set_enabled(synchronizes());
}

void DistributedDataParallelBase::zero_grad(bool set_to_none) {
  if (!reducer_) return module_->zero_grad(set_to_none);
  reducer_->clear_gradients(set_to_none);
  // From before they were frozen. An optimizer takes any gradient that is defined.
  for (NamedTensor& parameter : frozen_) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined()) continue;
    gradient = set_to_none ? at::Tensor() : at::zeros_like(gradient);
  }
}

std::chrono::nanoseconds DistributedDataParallelBase::exposed_communication() const {
  return queue_ ? queue_->exposed() : std::chrono::nanoseconds{0};
}

}  // namespace ddprun::worker
