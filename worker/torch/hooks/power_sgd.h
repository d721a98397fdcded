// Gradients travel as products of two thin matrices: PowerSGD, as PyTorch's powerSGD_hook
// (T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
// Distributed Optimization", NeurIPS 2019, arXiv 1905.13727, algorithms 1 and 2).
//
//   M = gradient + error            of this rank, rows x columns
//   P = M Q             ---->       average over the ranks, then made orthogonal: rows x rank
//   Q = M' P            ---->       average over the ranks:                    columns x rank
//   gradient = P Q'                 the same on all ranks
//   error = M - P Q'                of this rank; what did not travel is added the next time
//
// For networks that are slow beside the step: of a convolution of 512 x 4608 with rank 4 less than
// one part in a hundred travels. It is not the average of the gradients, and costs some ten passes
// over them and as much memory again for the errors. Ranks need processors of one kind, since all
// compute P Q' for themselves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "worker/torch/communication_hook.h"
#include "worker/torch/hooks/bucket_memory.h"

namespace ddprun::worker {

struct PowerSgdOptions {
  // Columns of P and Q, at least 1. PyTorch's matrix_approximation_rank.
  std::int64_t rank = 4;
  // In so many steps first everything travels whole, while gradients change much: PyTorch's
  // start_powerSGD_iter.
  std::int64_t start_step = 100;
  // What would not become smaller by this factor travels whole, as biases do. PyTorch's
  // min_compression_rate.
  double min_compression = 2;
  // Of the first Q; the same on all ranks.
  std::uint64_t seed = 0;
};

// How much of these gradients travels in a step, the padding of buckets aside.
struct PowerSgdBytes {
  std::int64_t whole = 0;    // Without.
  std::int64_t travels = 0;  // From PowerSgdOptions::start_step on.
};
PowerSgdBytes power_sgd_bytes(const std::vector<at::Tensor>& parameters,
                              const PowerSgdOptions& options);

// What a PowerSgd knows of the steps before, for training that goes on in another process.
struct PowerSgdMemory {
  struct Matrix {
    std::size_t parameter = 0;  // As GradientBucket::Gradient has it.
    at::Tensor error;           // In the parameter's shape: what has not travelled yet.
    at::Tensor q;               // The same, with `rank` in the place of the outermost dimension.
  };
  std::int64_t steps = 0;        // Done by now.
  std::vector<Matrix> matrices;  // None up to start_step.
};

class PowerSgd : public CommunicationHook {
 public:
  // std::invalid_argument for options that have no meaning.
  explicit PowerSgd(PowerSgdOptions options = {});

  void reduce(const GradientBucket& bucket, Communicator& communicator) override;
  std::string description() const override;
  bool take() noexcept override { return !taken_.exchange(true); }
  void give_back() noexcept override;

  // All below between two steps.

  // Gives each rank the average of all ranks' errors in the place of its own. P and Q are averages,
  // and of the errors nothing but their average comes into them: gradients are the same as without,
  // up to rounding. Then any rank's memory stands for all, and for any number of ranks. Nothing
  // travels where no step was since. Collective. Throws CommunicatorError.
  void share_errors(Communicator& communicator);
  // Whether they are the same on all ranks; also before there are any.
  bool errors_are_shared() const { return errors_are_shared_; }

  // Of this rank; the live tensors.
  PowerSgdMemory memory() const;
  // Goes on from there, the same on all ranks; copies. A Q of another rank is drawn anew.
  void restore(const PowerSgdMemory& memory);

 private:
  // Of a parameter.
  struct State {
    std::int64_t steps = 0;
    at::Tensor error, q;    // As in PowerSgdMemory; once there are rows, in the gradient's strides.
    at::Tensor error_rows;  // The same memory as the matrix; nothing before its first use.
    at::Tensor q_rows;      // Of the last step, transposed: rank x columns.
  };
  struct Matrix {
    at::Tensor values;  // Rows x columns: the gradient.
    State* state = nullptr;
  };
  struct Parts {
    std::vector<Matrix> matrices;
    std::vector<at::Tensor> whole;  // Flat.
  };

  Parts divide(const GradientBucket& bucket);
  void prepare(State& state, const GradientBucket::Gradient& gradient) const;

  const PowerSgdOptions options_;
  std::atomic<bool> taken_{false};
  std::map<std::size_t, State> states_;  // By parameter.
  std::int64_t steps_before_ = 0;        // That were restored.
  bool errors_are_shared_ = true;
  BucketMemory first_;   // What travels whole, and each P.
  BucketMemory second_;  // Each Q.
};

}  // namespace ddprun::worker
