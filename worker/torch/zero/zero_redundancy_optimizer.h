// An optimizer whose state is shared out among the ranks, as PyTorch's ZeroRedundancyOptimizer
// (S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, "ZeRO: Memory Optimizations Toward Training
// Trillion Parameter Models", SC 2020, arXiv 1910.02054: its first stage, P_os).
//
//   ZeroRedundancyOptimizer optimizer(net->parameters(), *communicator, [](auto groups) {
//     return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(1e-3));
//   });
//   ...
//   optimizer.zero_grad();
//   loss(ddp.forward(images), labels).backward();
//   optimizer.step();
//
// Each parameter belongs to one rank, which alone keeps state for it (Adam: two tensors of the
// parameter's size) and updates it; then it gives it to the others. The weights have the bits that
// the plain optimizer gives them. What it saves is (world_size - 1) / world_size of the state; it
// costs an all-gather of the parameters in each step, through 32 MiB.
//
// It is a torch::optim::Optimizer, so learning rates are set in its param_groups(), also by
// LibTorch's schedulers, on all ranks alike. Its state() is empty: own_part() has this rank's.
//
// A rank that is lost takes its state with it. What is to be gone on from is written to a file:
//
//   optimizer.consolidate();                                // On all ranks; brings it to rank 0.
//   if (communicator->rank() == 0) torch::save(optimizer, "optimizer.pt");
//   ...
//   torch::load(optimizer, "optimizer.pt", at::kCPU);       // On all ranks, be they more or fewer.
//
// It passes through the host's memory so, and each rank's share goes to its GPU; without a device
// LibTorch would lay all of it on the GPU of rank 0, for each rank. The file is what the plain
// optimizer would write, and may be one that it wrote.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/communicator.h"
#include "worker/torch/libtorch.h"
#include "worker/torch/zero/share_exchange.h"

namespace ddprun::worker {

class ZeroRedundancyOptimizer : public torch::optim::Optimizer {
 public:
  using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;
  // Makes the plain optimizer of these groups, of which some may be empty. It is called several
  // times, also later, with other parameters of the same groups.
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(ParamGroups groups)>;

  // Collective. The communicator, whose memory the parameters' device has, must outlive this
  // object; it may be that of a group of ranks. Throws ModelMismatch on all ranks where theirs have
  // other parameters, and std::invalid_argument for some that are not dense, on several devices, or
  // there twice, and for LBFGS, whose step needs all of them at once.
  ZeroRedundancyOptimizer(const ParamGroups& groups, Communicator& communicator, Make make);
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, Communicator& communicator,
                          Make make);

  // Collective: updates what is this rank's, and gets the rest. `closure` is called as by the plain
  // optimizer, so on each rank. On a CommunicatorError some parameters have the new values and some
  // the old ones.
  at::Tensor step(LossClosure closure = nullptr) override;

  // Collective: brings the whole state to rank `to`, whose save() may be called until the next
  // step() or load(). Each rank holds some copies of the largest share of it meanwhile.
  void consolidate(int to = 0);

  // std::logic_error where consolidate() has brought nothing here since the last step.
  void save(torch::serialize::OutputArchive& archive) const override;
  // Not collective: each rank keeps its part of what it reads.
  void load(torch::serialize::InputArchive& archive) override;

  // The optimizer of this rank's parameters, with its state.
  const torch::optim::Optimizer& own_part() const { return *own_; }

 private:
  struct Checked;
  explicit ZeroRedundancyOptimizer(Checked checked);
  ParamGroups groups_of(int rank) const;
  void pass_options();

  Communicator& communicator_;
  Make make_;
  std::vector<std::vector<int>> rank_of_;        // By group and parameter.
  std::vector<std::vector<at::Tensor>> shares_;  // By rank.
  std::unique_ptr<torch::optim::Optimizer> own_;
  std::unique_ptr<torch::optim::Optimizer> whole_;  // After consolidate(), on that rank.
  ShareExchange exchange_;
};

}  // namespace ddprun::worker
