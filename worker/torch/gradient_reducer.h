// Averages gradients over the ranks while backward still computes the rest of them.
//
//   loss.backward()
//     AccumulateGrad(p) -> hook: gradient into its bucket; bucket full -> ReductionQueue
//     ...
//     all gradients there -> callback at the end of backward: wait for the queue
//   returns: every p.grad() is the average over ranks
//
// Reducers of one communicator take turns (reducer_group.h), with no more than a forward and a
// backward of their modules.
//
// Threads: hooks may come from any of autograd's threads (one per device); everything else from the
// thread that trains. Errors: a hook's or a reduction's error leaves backward() as the exception
// that it is (CommunicatorError for a dead peer).
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/owning_process.h"
#include "worker/torch/autograd_node.h"
#include "worker/torch/communication_hook.h"
#include "worker/torch/flat_gradients.h"
#include "worker/torch/gradient_buckets.h"
#include "worker/torch/libtorch.h"
#include "worker/torch/reducer_group.h"
#include "worker/torch/reduction_queue.h"
#include "worker/torch/unused_parameters.h"

namespace ddprun::worker {

// A backward left parameters without gradients, two backwards overlapped, or one added to a sum
// over the ranks. Names them.
class UnreducedGradients : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Aborts the communicator with the same words, which are recorded before (declare_failure.h): the
// peers wait for what this rank will not send.
[[noreturn]] void throw_unreduced(Communicator& communicator, const std::string& message);

struct ReducerOptions {
  // By default PyTorch's limits, or those for shared memory where all ranks share it.
  std::optional<BucketLimits> buckets;

  // Parameters that got no gradient in a backward, nor in those of no_sync() before it, count as
  // zero on this rank and keep an undefined (or their old) gradient when no rank used them. Known
  // at the end of backward; costs one small all-reduce per step, and buckets with unused parameters
  // do not overlap with backward. CUDA: the host of a rank that has left one unused waits for the
  // device there, to learn whether others did.
  bool find_unused_parameters = false;

  // The same parameters are used in every step: unused ones are found in the first step in which
  // all ranks have a batch, left out from then on, and cost nothing.
  bool static_graph = false;

  // How each bucket travels, where not by an all-reduce of its own memory: in 16
  // bits, as thin matrices (hooks/), or as the caller likes. For one module. Sparse gradients
  // travel without it.
  std::shared_ptr<CommunicationHook> communication_hook;

  // Gradients become the sum over the ranks instead of the average. What is added to such a sum
  // would be summed up with it once more, so a backward that reduces must find gradients cleared by
  // zero_grad() since: where the sum is still as it was left, it throws UnreducedGradients. Not
  // with sparse gradients.
  bool sum = false;

  // Called for each gradient of this rank when it is there, before it is reduced, to add in place
  // what it needs besides; with its number among the parameters that require gradients. Any thread
  // of autograd's, one at a time. Empty: nothing. Not with sparse gradients.
  std::function<void(std::size_t parameter, const at::Tensor& gradient)> complete_gradient;
};

// Those of the options, or by whether all ranks share memory; the same on all ranks.
BucketLimits bucket_limits(const Communicator& communicator, const ReducerOptions& options);

class GradientReducer : private ReducerGroup::Reducer {
 public:
  // Others (SyncBatchNorm) may reduce through the same queue in the middle of backward. Where a
  // parameter may then be unused on one rank and used on another, its bucket would come before
  // their reduction on one and after it on the other: all buckets go at the end of such a backward.
  enum class QueueUse { Alone, Shared };

  // Collective. The communicator and the queue must outlive it; the module's hooks are removed with
  // it.
  GradientReducer(Communicator& communicator, std::shared_ptr<ReductionQueue> queue,
                  QueueUse queue_use, std::vector<NamedTensor> parameters,
                  const ReducerOptions& options);

  // Never hangs: aborts the communicator when a backward began to reduce and did not end. Where an
  // exception destroys it, that is left to whoever catches it, or abort_unless_told().
  ~GradientReducer() override;

  // A forward runs whose backward will reduce; the order of forwards is the same on all ranks.
  // Throws UnreducedGradients when the last backward began to reduce and did not end, and
  // aborts the communicator with the same words, because the peers wait for the missing buckets;
  // also as follow_parameters() does, which it begins with.
  void expect_backward();

  // Of a backward that did not come to its end, as when a hook of the user's threw: before anything
  // else uses the communicator. Throws what ended the queue's work.
  void let_queue_end() { queue_->wait(); }

  // Before a forward whose backward only accumulates: gives new hooks to parameters that were
  // loaded into since. Throws UnreducedGradients, and aborts, where one was moved or converted.
  void follow_parameters();

  // False: hooks do nothing, gradients accumulate on this rank.
  void set_enabled(bool enabled) { enabled_ = enabled; }

  void clear_gradients(bool set_to_none);

  // Takes part in the peers' reduction with zeros, or with what no_sync() has accumulated: for a
  // rank that has no batch left, or whose loss depends on no parameter. When several reducers have
  // one backward, they must do this in the order in which it comes to them.
  void reduce_without_backward();

  const BucketPlan& plan() const { return gradients_.plan(); }

 private:
  class Hook;

  bool is_running() const override { return running_; }
  bool can_finish() const override;
  bool launch_full_buckets() override;
  void queue_full_buckets();
  void queue_for_hook(std::size_t index);
  void queue_rows(std::size_t parameter);
  void queue_guarded(const std::string& what, ReductionQueue::Work work);
  void wait_for_peers();
  void finish() override;
  void pause() override;
  std::string unfinished_message() const override;

  void on_gradient(std::size_t parameter, bool defined);
  void refuse_unexpected(std::size_t parameter) const;
  void take_gradient(std::size_t parameter);
  void check_sum(std::size_t parameter);
  void note_sums();
  std::uintptr_t hook(std::size_t parameter);
  bool is_as_it_was(std::size_t parameter) const;
  void refuse_early_end() const;
  void refuse_second_derivatives() const;
  void forget_reduced();
  void leave_unused(std::size_t parameter);
  void keep_old(std::size_t parameter);
  void begin();
  void give_zeros();
  void count_uses();
  void define_sparse();
  void define_unused();
  bool settles() const;
  void settle_order();

  Communicator& communicator_;
  const OwningProcess owner_;
  const int exceptions_before_ = std::uncaught_exceptions();  // One more destroys this.
  std::shared_ptr<ReductionQueue> queue_;
  std::shared_ptr<ReducerGroup> group_;
  const bool queue_is_shared_;
  const ReduceOp op_;
  const std::function<void(std::size_t, const at::Tensor&)> complete_gradient_;
  const std::shared_ptr<CommunicationHook> hook_;
  UnusedParameters unused_;
  ReductionPolicy policy_;  // For the reduction that is running, or else the next.
  FlatGradients gradients_;
  BucketProgress progress_;
  // Int32, from the communicator. By parameter: ranks that have a gradient; then: ranks that had a
  // backward.
  at::Tensor used_counts_;
  // By parameter: autograd's version of a gradient that is a sum over the ranks. With `sum` only.
  std::vector<std::optional<std::int64_t>> sums_;
  std::vector<char> accumulated_;         // By parameter: in no_sync(), since it was reduced.
  std::vector<char> used_;                // By parameter: in this backward.
  std::vector<std::size_t> unused_here_;  // In this backward; may have an older gradient.
  std::vector<std::size_t> never_here_;   // static_graph: unused on this rank, used elsewhere.
  // Of an earlier step, which nobody has cleared, where this one may turn out to have none: the
  // reduction overwrites the memory in which it lies. By parameter.
  std::map<std::size_t, at::Tensor> old_;
  std::vector<NodePointer> accumulators_;
  std::vector<std::uintptr_t> hook_keys_;
  // Hooks on several devices run at the same time: backward, and a reduction in its place, hold the
  // group's mutex when they look at what follows. The rest comes from the thread that trains, while
  // no backward is running.
  bool enabled_ = true;
  bool running_ = false;
  bool had_backward_ = false;    // In the reduction that is running.
  bool end_awaited_ = false;     // Autograd will call the group at the end of this backward.
  ReducerGroup::Member member_;  // Last, so that the group never sees less than all of it.
};

}  // namespace ddprun::worker
