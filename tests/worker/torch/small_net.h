// A small network, batches for it, and comparisons: what tests of DistributedDataParallel share.
#pragma once

#include <vector>

#include "tests/worker/torch/thread_communicator.h"
#include "worker/torch/distributed_data_parallel.h"
#include "worker/torch/libtorch.h"

namespace ddprun::worker {

// Two convolutions and a classifier.
struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    conv1 =
        register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
    conv2 = register_module(
        "conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).padding(1).stride(2)));
    fc = register_module("fc", torch::nn::Linear(16, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return fc(conv2(conv1(x).relu()).relu().mean({2, 3})); }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(SmallNet);

inline constexpr BucketLimits tiny_buckets{64, 2048, 512};

inline DataParallelOptions options_with_tiny_buckets() {
  DataParallelOptions options;
  options.buckets = tiny_buckets;
  return options;
}

struct Batch {
  at::Tensor images;
  at::Tensor labels;

  Batch part(int rank, int ranks) const {
    const std::int64_t size = images.size(0) / ranks;
    return {images.narrow(0, rank * size, size), labels.narrow(0, rank * size, size)};
  }
};

inline Batch random_batch(std::uint64_t seed, std::int64_t size) {
  return seeded(seed, [&] {
    return Batch{torch::randn({size, 3, 8, 8}), torch::randint(5, {size}, torch::kLong)};
  });
}

inline at::Tensor loss_of(const at::Tensor& output, const Batch& batch) {
  return torch::nn::functional::cross_entropy(output, batch.labels);
}

inline std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : module.parameters()) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  }
  return gradients;
}

inline std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

inline bool all_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                      double tolerance = 1e-5) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !at::allclose(a[i], b[i], tolerance, tolerance)) return false;
  }
  return true;
}

inline bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace ddprun::worker
