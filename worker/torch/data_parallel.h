// Data parallelism within one process, as torch.nn.DataParallel: a batch is split over replicas of
// a module, which compute at the same time; their outputs come back as one tensor.
//
//   DataParallel<Net> parallel(net, {at::kCPU, at::kCPU}, [] { return std::make_shared<Net>(); });
//   loss(parallel.forward(images), labels).backward();   // gradients of the whole batch in net
//   optimizer.step();                                    // of net's parameters
//
//   images --chunk--> replica 0 (the module itself) --+
//                     replica 1                     --+--> outputs, in the order of the batch
//
// Prefer DistributedDataParallel, with one process per GPU or CPU share, also on a single host: it
// exchanges gradients while backward computes and each process loads its own data, whereas here the
// replicas wait for each other twice a step and one process feeds them all. This is for programs
// that must stay one process.
//
// What is the same as one module with the whole batch: outputs and gradients, within rounding.
// What is not: each replica normalises its own part of the batch in BatchNorm, unless
// synchronize_batch_norms() was called, and the running statistics are those of replica 0, as in
// PyTorch; random numbers (dropout) are drawn on the CPU
// from one generator in the order in which the replicas come by.
//
// The module's own parameters get the gradients, in one piece at the end of backward, through
// autograd: hooks, accumulation and a DistributedDataParallel around a module that uses this work.
// A backward with create_graph throws; a hook on a parameter (Tensor::register_hook) is called once
// more, with replica 0's share, on the CPU.
//
// On the CPU replicas share the memory of the weights, each has a thread for forward and backward,
// and they share the caller's number of LibTorch threads evenly. With GPUs weights are copied at
// every forward, the module lies on the first device, and the output comes back there; the copies
// are those of the last forward, so its backward must come before the next forward, or throws.
//
// Threads: one thread calls forward() and backward(). The forward of ModuleType must not use state
// that replicas share. Errors: what a replica throws leaves forward() or backward().
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "worker/torch/libtorch.h"
#include "worker/torch/sync_batch_norm.h"

namespace ddprun::worker {

class ReplicaThreads;

// All but the typed forward().
class DataParallelReplicas {
 public:
  // Where a replica's backward runs: on the CPU in its own thread, next to the others; with GPUs in
  // autograd's threads, of which there is one per device. The second is right for either.
  enum class Backward { OwnThreads, Autograd };
  static Backward fastest_backward(const std::vector<at::Device>& devices);

  // Replica 0 is the module. Throws std::invalid_argument, naming what is wrong, when replicas
  // differ in their parameters, buffers or modules, or the module is not on the first device.
  DataParallelReplicas(std::vector<std::shared_ptr<torch::nn::Module>> replicas,
                       std::vector<at::Device> devices, Backward backward);
  ~DataParallelReplicas();

  // Calls forward(replica, part) for as many parts as the batch has; input and output are batches
  // along dimension 0.
  using Forward = std::function<at::Tensor(std::size_t replica, const at::Tensor& part)>;
  at::Tensor run(const at::Tensor& input, const Forward& forward);

  // Every SyncBatchNorm2d of all replicas normalises over the whole batch of all replicas, and of
  // all ranks if the group has several; its queue may be null if it has one. Returns how many norms
  // a replica has. With GPUs a DistributedDataParallel around this must exchange gradients after
  // backward (BucketLimits::whole_step()): in the middle of it the order of buckets and statistics
  // would depend on the timing of the devices. Throws std::invalid_argument where replicas of one
  // device have their backward in autograd's one thread for it, in which they cannot meet.
  int synchronize_batch_norms(BatchNormGroup group);

  std::size_t size() const { return replicas_.size(); }

 private:
  void collect_tensors();
  void update_replicas();
  at::Tensor run_in_threads(const at::Tensor& input, const Forward& forward);
  at::Tensor run_in_graph(const at::Tensor& input, const Forward& forward);

  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  std::vector<at::Device> devices_;
  Backward backward_;
  std::vector<std::vector<at::Tensor>> parameters_;  // By replica; each tensor once.
  std::vector<std::vector<at::Tensor>> buffers_;     // By replica.
  std::vector<std::vector<std::shared_ptr<torch::nn::Module>>> modules_;  // By replica.
  std::shared_ptr<ReplicaThreads> threads_;  // A graph may outlive this object.
};

template <class ModuleType>
class DataParallel {
 public:
  // `make_replica` returns a new module of the same structure, whatever its weights; it is called
  // for every device but the first. CPU: name at::kCPU once for each replica.
  template <class MakeReplica>
  DataParallel(std::shared_ptr<ModuleType> module, std::vector<at::Device> devices,
               const MakeReplica& make_replica)
      : modules_(make_all(std::move(module), devices, make_replica)),
        replicas_({modules_.begin(), modules_.end()}, devices,
                  DataParallelReplicas::fastest_backward(devices)) {}

  // images: a batch along dimension 0. Parts differ by what torch.chunk makes of them; a batch
  // smaller than the number of replicas leaves some of them idle.
  at::Tensor forward(const at::Tensor& images) {
    return replicas_.run(images, [this](std::size_t replica, const at::Tensor& part) {
      return modules_[replica]->forward(part);
    });
  }

  int synchronize_batch_norms(const BatchNormGroup& group) {  // As DataParallelReplicas'.
    return replicas_.synchronize_batch_norms(group);
  }

  const std::shared_ptr<ModuleType>& module() const { return modules_.front(); }
  std::size_t size() const { return modules_.size(); }

 private:
  template <class MakeReplica>
  static std::vector<std::shared_ptr<ModuleType>> make_all(std::shared_ptr<ModuleType> module,
                                                           const std::vector<at::Device>& devices,
                                                           const MakeReplica& make_replica) {
    std::vector<std::shared_ptr<ModuleType>> modules{std::move(module)};
    for (std::size_t i = 1; i < devices.size(); ++i) {
      modules.push_back(make_replica());
      modules.back()->to(devices[i]);
    }
    return modules;
  }

  std::vector<std::shared_ptr<ModuleType>> modules_;
  DataParallelReplicas replicas_;
};

}  // namespace ddprun::worker
