// Hooks on autograd's gradient accumulators, and the reduction that they drive. Whose turn it is
// among several reducers is the group's affair; which parameters may lack a gradient, the policy's.
#include "worker/torch/gradient_reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <mutex>
#include <utility>

#include "worker/declare_failure.h"
#include "worker/error_file.h"
#include "worker/progress_page.h"
#include "worker/torch/sparse_gradients.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {
namespace {

constexpr std::size_t names_shown_max = 10;

std::vector<std::size_t> arrivals_then_rest(const std::vector<std::size_t>& arrivals,
                                            std::size_t parameters) {
  std::vector<bool> there(parameters, false);
  for (const std::size_t i : arrivals) there[i] = true;
  std::vector<std::size_t> order = arrivals;
  for (const std::size_t i : reverse_order(parameters)) {
    if (!there[i]) order.push_back(i);
  }
  return order;
}

// What this rank alone fails of: recorded before the peers hear of it, or one of them is blamed.
// Not where the communicator was aborted before: what follows from a peer's failure is no fault of
// this rank's, which may live on without that peer (membership.h).
void declare(Communicator& communicator, const std::string& message) {
  if (communicator.aborted()) return;
  record_error_with_stack(message);
  declare_failure(&communicator, message);
}

}  // namespace

void throw_unreduced(Communicator& communicator, const std::string& message) {
  declare(communicator, message);
  throw UnreducedGradients(message);
}

BucketLimits bucket_limits(const Communicator& communicator, const ReducerOptions& options) {
  if (options.buckets) return *options.buckets;
  if (!communicator.shares_memory()) return {};
  return BucketLimits::shared_memory(communicator.world_size());
}

// Runs after autograd has accumulated one parameter's gradient. A post hook of the accumulator node
// and not the tensor's post-accumulate hook: a tensor has only one of the latter, which stays the
// user's, and LibTorch reserves it for Python.
class GradientReducer::Hook : public torch::autograd::FunctionPostHook {
 public:
  Hook(GradientReducer& reducer, std::size_t parameter)
      : reducer_(reducer), parameter_(parameter) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    reducer_.on_gradient(parameter_, inputs.at(0).defined());
    return outputs;
  }

 private:
  GradientReducer& reducer_;
  std::size_t parameter_;
};

GradientReducer::GradientReducer(Communicator& communicator, std::shared_ptr<ReductionQueue> queue,
                                 QueueUse queue_use, std::vector<NamedTensor> parameters,
                                 const ReducerOptions& options)
    : communicator_(communicator),
      queue_(std::move(queue)),
      group_(ReducerGroup::of(communicator)),
      queue_is_shared_(queue_use == QueueUse::Shared),
      op_(options.sum ? ReduceOp::Sum : ReduceOp::Average),
      complete_gradient_(options.complete_gradient),
      hook_(options.communication_hook),
      unused_(unused_parameters(options.find_unused_parameters, options.static_graph)),
      policy_(reduction_policy(unused_, /*first_reduction=*/true)),
      gradients_(communicator, parameters, bucket_limits(communicator, options)),
      progress_(gradients_.plan()),
      accumulated_(gradients_.size(), false),
      used_(gradients_.size(), false) {
  if (policy_.looks_for_unused && !parameters.empty()) {
    used_counts_ = allocate_tensor(communicator, (parameters.size() + 1) * sizeof(std::int32_t),
                                   at::kInt, parameters.front().tensor.device());
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    // The tensor holds its accumulator only weakly; without this pointer hook and node would go.
    accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameters[i].tensor));
    hook_keys_.push_back(hook(i));
  }
  member_ = group_->enter(*this);
}

GradientReducer::~GradientReducer() {
  // In a forked child the queue is the parent's, and so is what it works at; a thread that only the
  // parent has may hold the group's lock.
  const bool is_copy = !owner_.is_this();
  if (!is_copy) group_->leave(member_);
  // Takes no lock. A graph may keep the accumulators, in a child too.
  for (std::size_t i = 0; i < accumulators_.size(); ++i) {
    accumulators_[i]->del_post_hook(hook_keys_[i]);
  }
  if (is_copy) return;
  if (running_ || !queue_->idle()) {  // The peers wait for what this rank will not send any more.
    // An exception is told by whoever catches it, in its words: to say more here would be before it
    // is recorded, and the peers would be blamed. They come to what is queued, and no further.
    const bool thrown = std::uncaught_exceptions() > exceptions_before_;
    if (!thrown) declare(communicator_, unfinished_message());
    try {
      queue_->wait();  // The queue must let go of the gradients' memory.
    } catch (const std::exception&) {
      // What ended it is known to whoever called backward(), or is the abort.
    }
    if (thrown) {
      communicator_.abort_unless_told("rank " + std::to_string(communicator_.rank()) +
                                      backward_without_words);
    }
  }
  gradients_.release();
}

void GradientReducer::expect_backward() {
  communicator_.throw_if_aborted();
  follow_parameters();
  if (running_) {
    // Complete, it waits for one whose turn comes before its own: that one has the reason.
    const ReducerGroup::Reducer* const before = group_->first_unfinished();
    const std::string message =
        can_finish() && before != nullptr ? before->unfinished_message() : unfinished_message();
    throw_unreduced(communicator_, message);
  }
  group_->expect(member_);
}

std::uintptr_t GradientReducer::hook(std::size_t parameter) {
  return accumulators_[parameter]->add_post_hook(std::make_unique<Hook>(*this, parameter));
}

// As when the accumulator that is hooked was made, which is when the module was wrapped.
bool GradientReducer::is_as_it_was(std::size_t parameter) const {
  const at::Tensor& now = gradients_.parameter(parameter);
  const auto& then = accumulators_[parameter]->input_metadata(0);
  return now.requires_grad() && now.scalar_type() == at::typeMetaToScalarType(then.dtype()) &&
         now.device() == then.device() && now.sym_sizes().equals(then.shape_as_dim_vector());
}

// Who gives a parameter new data may leave it with another accumulator, and with it no hook: its
// gradients would stay this rank's own. set_() always does, and so torch::load() within a device;
// set_data(), and so to(), where type or device change.
void GradientReducer::follow_parameters() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (torch::autograd::impl::try_get_grad_accumulator(gradients_.parameter(i)) ==
        accumulators_[i])
      continue;
    if (is_as_it_was(i)) {
      accumulators_[i]->del_post_hook(hook_keys_[i]);
      accumulators_[i] = torch::autograd::impl::grad_accumulator(gradients_.parameter(i));
      hook_keys_[i] = hook(i);
      continue;
    }
    const std::string message = "rank " + std::to_string(communicator_.rank()) + ": parameter '" +
                                gradients_.name(i) +
                                "' was moved or converted after the module was wrapped, and its "
                                "gradient would not be reduced: wrap the module after it";
    throw_unreduced(communicator_, message);
  }
}

std::string GradientReducer::unfinished_message() const {
  const std::string rank = "rank " + std::to_string(communicator_.rank());
  const std::vector<std::size_t> missing = progress_.missing();
  if (missing.empty()) return rank + ": the last backward ended with an error";
  const auto frozen = std::find_if(missing.begin(), missing.end(), [&](std::size_t parameter) {
    return !gradients_.parameter(parameter).requires_grad();
  });
  if (frozen != missing.end()) {
    return rank + ": parameter '" + gradients_.name(*frozen) +
           "' got no gradient, because it was frozen (requires_grad is false) after the module was "
           "wrapped: wrap the module after it is frozen, or set find_unused_parameters";
  }
  std::string names;
  for (std::size_t i = 0; i < std::min(missing.size(), names_shown_max); ++i) {
    names += (i == 0 ? "'" : ", '") + gradients_.name(missing[i]) + "'";
  }
  if (missing.size() > names_shown_max) names += ", ...";
  return rank +
         ": the last backward did not reduce all gradients: " + std::to_string(missing.size()) +
         " of " + std::to_string(gradients_.size()) + " parameters got none: " + names +
         ". If the loss does not depend on them, set find_unused_parameters (or static_graph, when "
         "they are the same in every step); if backward ended with an exception, training cannot "
         "go "
         "on, because the peers wait for these gradients";
}

void GradientReducer::begin() {
  running_ = true;
  had_backward_ = true;
  end_awaited_ = false;
  unused_here_ = never_here_;
  for (const std::size_t i : never_here_) {
    gradients_.adopt(i);
    progress_.mark(i);
  }
}

// `defined`: this backward had one for it. Autograd also comes by where an operation returned none.
void GradientReducer::on_gradient(std::size_t parameter, bool defined) {
  // The step may be lost already, and a survivor of a peer's death is waited for until it has left.
  communicator_.throw_if_aborted();
  const std::lock_guard lock(group_->mutex());
  if (defined && !sums_.empty()) check_sum(parameter);
  if (!enabled_) {
    if (defined) accumulated_[parameter] = true;
    return;
  }
  refuse_second_derivatives();
  const bool dropped = !gradients_.plan().places[parameter].bucket;
  if (dropped && !defined) return;  // As in the first step.
  if (!running_) begin();
  refuse_unexpected(parameter);
  if (defined) {
    used_[parameter] = true;
  } else {
    leave_unused(parameter);
  }
  take_gradient(parameter);
  progress_.mark(parameter);
  group_->advance();
  // Also where some will be missing: their end comes, and finds out.
  if (!end_awaited_) {
    end_awaited_ = true;
    // The callback may run when this reducer is gone, but never when the group is.
    torch::autograd::Engine::get_default_engine().queue_callback(
        [group = group_] { group->end_of_backward(); });
  }
}

void GradientReducer::refuse_unexpected(std::size_t parameter) const {
  const std::string name = "rank " + std::to_string(communicator_.rank()) + ": parameter '" +
                           gradients_.name(parameter) + "' got a gradient ";
  const bool never_here =
      std::find(never_here_.begin(), never_here_.end(), parameter) != never_here_.end();
  if (never_here || !gradients_.plan().places[parameter].bucket) {
    throw_unreduced(communicator_,
                    name + "that it did not get in the first step, which static_graph rules out");
  }
  if (!progress_.is_marked(parameter)) return;
  throw_unreduced(
      communicator_,
      name +
          "twice in one reduction: backward ran again before all parameters had theirs. Use "
          "no_sync() for all but the last backward; where checkpointed parts share a parameter, "
          "run backward within no_sync() and call reduce_without_backward() after it");
}

// What cannot be taken fails on this rank alone, as a rule, and the peers wait.
void GradientReducer::take_gradient(std::size_t parameter) {
  try {
    gradients_.adopt(parameter);
    if (complete_gradient_) complete_gradient_(parameter, gradients_.view(parameter));
  } catch (const CommunicatorError&) {
    throw;
  } catch (const std::exception& error) {
    declare(communicator_, "rank " + std::to_string(communicator_.rank()) + ": " + error.what());
    throw;
  }
}

// The values of a gradient go to its bucket, and how they were computed would be lost.
void GradientReducer::refuse_second_derivatives() const {
  if (!at::GradMode::is_enabled()) return;
  throw_unreduced(communicator_,
                  "rank " + std::to_string(communicator_.rank()) +
                      ": second derivatives of what is reduced are not there: call backward "
                      "without create_graph, and take the gradients that a loss contains by "
                      "torch::autograd::grad()");
}

// Adding to a gradient in place counts its version up by one; whatever cleared it before has
// counted, too, or made it another tensor.
void GradientReducer::check_sum(std::size_t parameter) {
  std::optional<std::int64_t>& sum = sums_[parameter];
  if (!sum) return;
  if (!gradients_.is_view(parameter) || gradients_.view(parameter)._version() != *sum + 1) {
    sum.reset();
    return;
  }
  if (!enabled_) {  // Of no harm as long as it is not reduced.
    ++*sum;
    return;
  }
  throw_unreduced(
      communicator_,
      "rank " + std::to_string(communicator_.rank()) + ": the gradient of parameter '" +
          gradients_.name(parameter) +
          "' is the sum over the ranks that the last reduction has left, and with this "
          "backward's it would be summed up once more: call zero_grad() before the first "
          "backward of each step, and use no_sync() for all but its last one");
}

void GradientReducer::note_sums() {
  sums_.assign(gradients_.size(), std::nullopt);
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (gradients_.is_view(i)) sums_[i] = gradients_.view(i)._version();
  }
}

// Clears the memory of all gradients at once, which their versions do not tell.
void GradientReducer::clear_gradients(bool set_to_none) {
  gradients_.clear(set_to_none);
  sums_.clear();
  accumulated_.assign(gradients_.size(), false);
}

bool GradientReducer::can_finish() const {
  return policy_.looks_for_unused || progress_.missing_count() == 0;
}

bool GradientReducer::launch_full_buckets() {
  if (policy_.looks_for_unused && queue_is_shared_) return false;  // At the end, by finish().
  queue_full_buckets();
  // The count of uses and the order of arrival are collectives of finish().
  return progress_.all_taken() && !policy_.looks_for_unused && !policy_.settles_order;
}

void GradientReducer::queue_full_buckets() {
  // In the plan's order, not as they fill: all ranks must make the same calls in the same order.
  while (const auto bucket = progress_.take_full_bucket()) {
    if (const auto sparse = gradients_.sparse_gradient_of(*bucket)) {
      queue_rows(*sparse);
      continue;
    }
    const FlatGradients::Span span = gradients_.bucket(*bucket);
    if (span.count == 0) continue;
    if (hook_) {
      queue_for_hook(*bucket);
    } else {
      queue_->all_reduce(span.data, span.count, span.type, op_);
    }
  }
}

void GradientReducer::queue_for_hook(std::size_t index) {
  const GradientBucket& bucket = gradients_.bucket_of_tensors(index, op_);
  queue_guarded(
      "the communication hook (" + hook_->description() + ")",
      [hook = hook_, &bucket](Communicator& communicator) { hook->reduce(bucket, communicator); });
}

// Not by the hook, which is for memory that all ranks have alike. An undefined one has no rows.
void GradientReducer::queue_rows(std::size_t parameter) {
  const at::Tensor& weight = gradients_.parameter(parameter);
  queue_guarded(
      "the reduction of the sparse gradient of parameter '" + gradients_.name(parameter) + "'",
      [&reduced = gradients_.reduced(parameter), weight, gradient = weight.grad(),
       op = op_](Communicator& communicator) {
        reduced = all_reduce_rows(communicator, gradient, weight, op);
      });
}

// What fails there fails on this rank alone, as a rule, and the peers wait.
void GradientReducer::queue_guarded(const std::string& what, ReductionQueue::Work work) {
  queue_->run([what, work = std::move(work)](Communicator& communicator) {
    const auto fail = [&](const std::string& why) {
      declare(communicator,
              "rank " + std::to_string(communicator.rank()) + ": " + what + " failed: " + why);
    };
    try {
      work(communicator);
    } catch (const CommunicatorError&) {
      throw;
    } catch (const std::exception& error) {
      fail(error.what());
      throw;
    } catch (...) {
      fail("with what is no std::exception");
      throw;
    }
  });
}

void GradientReducer::reduce_without_backward() {
  const std::lock_guard lock(group_->mutex());
  if (!running_) {
    forget_reduced();
    begin();
  }
  had_backward_ = false;
  give_zeros();
  finish();
  group_->pass(member_);
}

// What the last step has left is no part of this one, where a rank that has no batch does not clear
// it either. What no_sync() has added since is. A version of the tensor, as of sums, would not tell
// them apart: clipping changes gradients in place, too.
void GradientReducer::forget_reduced() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (accumulated_[i] || !gradients_.plan().places[i].bucket) continue;
    keep_old(i);
    gradients_.forget(i);
  }
}

// In this backward; what an earlier one has left may be there.
void GradientReducer::leave_unused(std::size_t parameter) {
  unused_here_.push_back(parameter);
  keep_old(parameter);
}

void GradientReducer::keep_old(std::size_t parameter) {
  if (!policy_.looks_for_unused || accumulated_[parameter] || !gradients_.is_defined(parameter))
    return;
  const at::NoGradGuard no_grad;
  old_.emplace(parameter, gradients_.parameter(parameter).grad().clone());
}

void GradientReducer::finish() {
  const at::NoGradGuard no_grad;
  refuse_early_end();
  if (policy_.looks_for_unused) give_zeros();
  queue_full_buckets();
  assert(progress_.all_taken());
  if (policy_.looks_for_unused) count_uses();
  wait_for_peers();
  define_sparse();
  if (!unused_here_.empty()) define_unused();
  if (settles()) {
    if (policy_.settles_order) settle_order();
    policy_ = reduction_policy(unused_, /*first_reduction=*/false);
  } else {
    never_here_.clear();
  }
  if (op_ == ReduceOp::Sum) note_sums();
  accumulated_.assign(gradients_.size(), false);
  used_.assign(gradients_.size(), false);
  old_.clear();
  progress_.restart(gradients_.plan());
  running_ = false;
}

// A backward within backward (checkpointing) ends before its outer one. What is missing then would
// be left out for good, or be summed up twice; averages of averages are right.
void GradientReducer::refuse_early_end() const {
  if (!policy_.looks_for_unused || progress_.missing_count() == 0) return;
  if (!policy_.drops_unused && op_ != ReduceOp::Sum) return;
  if (torch::autograd::get_current_node() == nullptr) return;
  const std::string message =
      "rank " + std::to_string(communicator_.rank()) +
      ": a backward within backward (checkpointing) ended before parameter '" +
      gradients_.name(progress_.missing().front()) +
      "' had its gradient, and which parameters are unused is found at the end of a backward: do "
      "without static_graph and find_unused_parameters, or without the inner backward";
  throw_unreduced(communicator_, message);
}

// What is queued ends here, and not behind the back of a caller who uses the communicator next.
void GradientReducer::pause() {
  end_awaited_ = false;
  queue_->wait();
}

// The one place where a rank that is done stands until the slowest is.
void GradientReducer::wait_for_peers() {
  ProgressPage::own().waits();
  queue_->wait();
  ProgressPage::own().reduced(queue_->take_exposed());
}

// For the peers, which may have gradients where this rank has none. Backward would have come to the
// last ones first; rank 0's order becomes everybody's.
void GradientReducer::give_zeros() {
  std::vector<std::size_t> missing = progress_.missing();
  std::reverse(missing.begin(), missing.end());
  for (const std::size_t i : missing) {
    leave_unused(i);
    if (policy_.drops_unused) never_here_.push_back(i);
    gradients_.adopt(i);
    progress_.mark(i);
  }
}

// Be it in a batch of no_sync(). A gradient alone tells nothing: it may be an earlier step's.
void GradientReducer::count_uses() {
  const std::size_t parameters = gradients_.size();
  if (parameters == 0) return;
  // Page-locked for a GPU, or the host would stand here until all of backward is done there.
  const bool pinned = gradients_.device().is_cuda();
  at::Tensor used = at::empty({static_cast<std::int64_t>(parameters) + 1},
                              at::TensorOptions(at::kInt).pinned_memory(pinned));
  auto* const flags = used.data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < parameters; ++i) {
    flags[i] = gradients_.is_defined(i) && (used_[i] || accumulated_[i]) ? 1 : 0;
  }
  flags[parameters] = had_backward_ ? 1 : 0;
  used_counts_.copy_(used, /*non_blocking=*/true);
  queue_->all_reduce(used_counts_.data_ptr(), parameters + 1, DataType::Int32, ReduceOp::Sum);
}

// Those of this rank's backward; of the rest the policy says what becomes of it.
void GradientReducer::define_sparse() {
  for (std::size_t bucket = 0; bucket < gradients_.plan().buckets.size(); ++bucket) {
    const auto sparse = gradients_.sparse_gradient_of(bucket);
    if (!sparse) continue;
    const bool unused =
        std::find(unused_here_.begin(), unused_here_.end(), *sparse) != unused_here_.end();
    if (!unused) gradients_.define(*sparse);
  }
}

// A parameter that some rank used has an average here too; one that no rank used has none, or that
// of an earlier step, as it was.
void GradientReducer::define_unused() {
  if (!policy_.looks_for_unused) {  // Nobody counted: each of them has a bucket, so it has a user.
    for (const std::size_t i : unused_here_) gradients_.define(i);
    return;
  }
  const at::Tensor counts = result_on_host(communicator_, used_counts_);
  const auto* const used = counts.data_ptr<std::int32_t>();
  for (const std::size_t i : unused_here_) {
    const auto old = old_.find(i);
    const bool keeps_old = used[i] == 0 && old != old_.end();
    if (keeps_old) gradients_.restore(i, old->second);
    if (used[i] > 0 || keeps_old) gradients_.define(i);
  }
}

// What a rank uses is not known where it had no batch: then a later step tells, on all ranks.
bool GradientReducer::settles() const {
  if (!policy_.drops_unused || gradients_.size() == 0) return true;
  const at::Tensor counts = result_on_host(communicator_, used_counts_);
  return counts.data_ptr<std::int32_t>()[gradients_.size()] == communicator_.world_size();
}

// Buckets in the order in which gradients arrived on rank 0. Here and not at the next forward,
// because this is a point that all ranks reach at the same time, with nothing in the queue.
void GradientReducer::settle_order() {
  if (gradients_.size() == 0) return;
  std::vector<std::size_t> order = arrivals_then_rest(progress_.arrival_order(), gradients_.size());
  at::Tensor agreed = at::empty({static_cast<std::int64_t>(order.size())}, at::kLong);
  std::copy(order.begin(), order.end(), agreed.data_ptr<std::int64_t>());
  agreed = agreed.to(gradients_.device());
  broadcast(communicator_, agreed, 0);
  agreed = result_on_host(communicator_, agreed);  // Or garbage would be taken for places.
  const auto* const first = agreed.data_ptr<std::int64_t>();
  order.assign(first, first + agreed.numel());
  if (policy_.drops_unused) {
    const at::Tensor counts = result_on_host(communicator_, used_counts_);
    const auto* const used = counts.data_ptr<std::int32_t>();
    std::erase_if(order, [&](std::size_t i) { return used[i] == 0; });
    std::erase_if(never_here_, [&](std::size_t i) { return used[i] == 0; });
  }
  gradients_.reorder(order);
}

}  // namespace ddprun::worker
