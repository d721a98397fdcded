// Data-parallel training of any torch::nn::Module, as torch.nn.parallel.DistributedDataParallel.
//
//   auto communicator = make_cpu_communicator(read_worker_env());
//   DistributedDataParallel ddp(net, *communicator);   // net: a module holder or std::shared_ptr
//   ...
//   ddp.zero_grad();
//   loss(ddp.forward(images), labels).backward();      // gradients are averaged when it returns
//   optimizer.step();
//
// Every rank makes the same calls with a model of the same shape; the weights start as rank 0's and
// stay equal bit for bit. Move, convert, freeze and unfreeze the module before it is wrapped;
// weights may be loaded into it between a backward and the next forward, by all ranks the same.
// Parameters that do not require gradients are left out; complex ones are averaged by their parts.
// Sparse gradients of Embedding and EmbeddingBag stay sparse (sparse_gradients.h; not over NCCL).
// A gradient is a view into memory that comes from the communicator: tensors taken from p.grad(),
// and this object, must go before the communicator does. A tensor from p.grad(), a view or a
// detach() of it keeps its values over zero_grad(), as without this.
//
// Buffers. PyTorch overwrites all ranks' buffers with rank 0's before every forward that follows
// one whose backward reduced. So does this, but for the running statistics of BatchNorm1d, 2d and
// 3d: these influence a forward only where a BatchNorm is in evaluation mode (be it alone, within a
// module in training mode), so when the module has no other buffers, they travel only before a
// forward that reads them, before forwards without gradients or within no_sync() as in PyTorch, and
// by synchronize_buffers() (before a rank other than 0 saves them). What every forward computes is
// the same. A class derived from BatchNorm counts as "other buffers", because it may read them in
// training; one who reads them past the BatchNorm's own forward calls synchronize_buffers() first.
//
// Uneven batches, as with PyTorch's Join: a rank without a batch calls reduce_without_backward()
// for each step of its peers, and then steps its optimizer as they do. It counts as zero in the
// averages, but for what it accumulated within no_sync(), and as long as it has missed what
// happened to the buffers, the lowest rank that missed nothing stands for rank 0.
//
// Several modules on one communicator, in one backward or in several: each is wrapped, and they
// take turns by themselves. All ranks call their forwards in the same order; while backward goes
// on, the gradients of the module whose forward came last are reduced first. A parameter has one
// wrapper at a time: modules that share one are wrapped as one.
//
// Threads: one thread calls; a thread (CPU) or stream (CUDA) of its own carries out the reductions.
// Between a forward and the end of its backward the communicator must not be used otherwise. CUDA:
// the stream that is current when a module is wrapped should be that of its forwards, for autograd
// accumulates gradients on it.
// Errors: CommunicatorError from any call when a peer has died; UnreducedGradients from the forward
// after a backward that began to reduce and left parameters without a gradient, and from one whose
// parameters were moved, converted or unfrozen; from a backward with create_graph. A backward that
// came to no gradient at all is none to the peers: this rank's next one would meet their current
// one.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/communicator.h"
#include "worker/torch/buffer_schedule.h"
#include "worker/torch/gradient_reducer.h"
#include "worker/torch/libtorch.h"
#include "worker/torch/model_agreement.h"
#include "worker/torch/tensor_collectives.h"

namespace ddprun::worker {

struct DataParallelOptions : ReducerOptions {
  // False: buffers are each rank's own, once all have started with rank 0's. PyTorch then leaves
  // them alone at the start, too; here only init_sync = false does, because rank 0 may be the one
  // that has read a checkpoint (`train --shards`). Ranks must have them in the same shapes all the
  // same, for synchronize_buffers(). Sparse ones cannot be sent: they need both to be false.
  bool broadcast_buffers = true;

  // As PyTorch's: false where the caller has made the ranks' models equal, and the broadcast of
  // rank 0's would be a copy for nothing.
  bool init_sync = true;

  // In a world of one there is nothing to reduce: no hooks, no flat memory, no cost, unless
  // gradients are to be completed. True runs all of it nevertheless, for tests and measurements.
  bool reduce_world_of_one = false;

  // reduction_queue_of(communicator), or something in its place that hands on all to it. Given by
  // those whose module reduces in the middle of backward, too (BatchNormGroup).
  std::shared_ptr<ReductionQueue> queue;
};

class DistributedDataParallelBase;

// For a step in which the peers' backward goes through several modules: in the order of their
// forwards.
void reduce_without_backward(const std::vector<DistributedDataParallelBase*>& forwards);

// All but the typed forward().
class DistributedDataParallelBase {
 public:
  // Collective: compares the models (ModelMismatch on all ranks if they differ), broadcasts rank
  // 0's parameters and buffers. The communicator must outlive this object. Throws
  // std::invalid_argument for what cannot be reduced: dtypes, another device, elements that share
  // memory, a parameter of another wrapper that lives, sparse gradients over NCCL.
  DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
                              DataParallelOptions options);
  DistributedDataParallelBase(const DistributedDataParallelBase&) = delete;
  DistributedDataParallelBase& operator=(const DistributedDataParallelBase&) = delete;

  // While one lives, backward accumulates on this rank only. The first backward after it reduces
  // the sum. Put the forward into its scope too. Several may overlap in any way, as where one is
  // assigned in the place of another.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(DistributedDataParallelBase& ddp) : ddp_(ddp) { ddp_.count_no_sync(+1); }
    ~NoSync() { ddp_.count_no_sync(-1); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedDataParallelBase& ddp_;
  };
  NoSync no_sync() { return NoSync(*this); }

  // By default gradients become undefined, as in PyTorch; false: those that are defined become
  // zeros (one memset per dtype). An optimizer's own zero_grad() does as well, only slower.
  void zero_grad(bool set_to_none = true);

  // A rank without a batch takes part in its peers' step, with zeros: in their forward, and in
  // their backward unless both are within no_sync().
  void reduce_without_backward() { ddprun::worker::reduce_without_backward({this}); }

  // Overwrites all ranks' buffers with rank 0's, but for sparse ones. Collective.
  void synchronize_buffers();

  // Time that the end of backward has waited for communication since the start, for all modules on
  // this communicator. CUDA: that the device's stream has, as far as the device is past it.
  std::chrono::nanoseconds exposed_communication() const;

  std::size_t bucket_count() const { return reducer_ ? reducer_->plan().buckets.size() : 0; }

 protected:
  void before_forward();

 private:
  friend void reduce_without_backward(const std::vector<DistributedDataParallelBase*>&);

  bool synchronizes() const { return no_syncs_ == 0; }
  void count_no_sync(int more);
  void take_hook();
  void collect_buffers();
  void check_layouts() const;
  void check_frozen();
  std::vector<std::string> describe() const;
  void follow_schedule(bool reduces);

  std::shared_ptr<torch::nn::Module> module_;
  Communicator& communicator_;
  DataParallelOptions options_;
  bool active_ = true;                   // False in a world of one with nothing to do.
  std::vector<NamedTensor> parameters_;  // Distinct, those without gradients included.
  std::vector<NamedTensor> frozen_;      // Those of them that are left out.
  std::vector<at::Tensor> buffers_;      // Those that can be sent: not sparse ones.
  std::vector<std::shared_ptr<torch::nn::Module>> norms_;  // Keep running statistics.
  BufferSchedule buffer_schedule_{0, false};
  bool missed_forward_ =
      false;          // Since the buffers were sent, the peers ran one without this rank.
  int no_syncs_ = 0;  // Guards that live.
  TensorBroadcast buffer_broadcast_;
  std::shared_ptr<ReductionQueue> queue_;
  std::shared_ptr<void> hook_use_;  // Gives the communication hook back, after the reducer.
  std::unique_ptr<GradientReducer> reducer_;
};

template <class ModuleType>
class DistributedDataParallel : public DistributedDataParallelBase {
 public:
  DistributedDataParallel(std::shared_ptr<ModuleType> module, Communicator& communicator,
                          DataParallelOptions options = {})
      : DistributedDataParallelBase(module, communicator, std::move(options)),
        module_(std::move(module)) {}

  DistributedDataParallel(const torch::nn::ModuleHolder<ModuleType>& module,
                          Communicator& communicator, DataParallelOptions options = {})
      : DistributedDataParallel(module.ptr(), communicator, std::move(options)) {}

  // The module's own forward, with its arguments and its result.
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    before_forward();
    return module_->forward(std::forward<Arguments>(arguments)...);
  }

  // As with LibTorch's module holders: ddp->forward(x) and ddp.forward(x) are the same.
  DistributedDataParallel* operator->() { return this; }

  // For what involves this rank alone: saving, evaluating on one rank. On a rank other than 0 the
  // running statistics are of its own batches until all ranks call synchronize_buffers().
  const std::shared_ptr<ModuleType>& module() const { return module_; }

  std::vector<at::Tensor> parameters() const { return module_->parameters(); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

 private:
  std::shared_ptr<ModuleType> module_;
};

template <class Holder>
requires requires { typename Holder::ContainedType; }
DistributedDataParallel(const Holder&, Communicator&, DataParallelOptions = {})
    ->DistributedDataParallel<typename Holder::ContainedType>;

}  // namespace ddprun::worker
