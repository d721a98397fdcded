// Turns a list of indices into normalised batches, ahead of the training loop when it has threads.
//
//   threads:  claim batch k -> read bytes -> normalise -> slot k % slots      loop: next() in order
#pragma once

#include <torch/torch.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "trainer/data/dataset.h"

namespace ddprun::trainer {

struct Batch {
  torch::Tensor images;               // (N, C, H, W) float on the CPU, normalised.
  torch::Tensor labels;               // (N) int64
  std::vector<std::int64_t> indices;  // (N) Of the images in the data set.
};

struct LoaderOptions {
  std::int64_t batch_size = 64;
  int threads = 1;              // 0: batches are made inside next().
  std::int64_t image_size = 0;  // Resize (bilinear) to this side; 0 = as the data set has it.
  bool channels_last = false;   // Memory order of `images`.
};

// One pass over `indices`; the last batch holds the rest. `dataset` must outlive the loader. Used
// by one thread. An error while making a batch is thrown by the next() that would return it.
class BatchLoader {
 public:
  BatchLoader(const Dataset& dataset, std::vector<std::int64_t> indices, LoaderOptions options);
  ~BatchLoader();  // Stops the threads; unused batches are dropped.
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  std::int64_t batches() const { return batches_; }

  // The next batch, or nothing after the last.
  std::optional<Batch> next();

 private:
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr error;
  };

  Batch make_batch(std::int64_t number) const;
  void normalize(const std::vector<std::uint8_t>& pixels, torch::Tensor& images) const;
  void run_thread();
  Slot& slot_of(std::int64_t number) {
    return slots_[static_cast<std::size_t>(number) % slots_.size()];
  }

  const Dataset& dataset_;
  const std::vector<std::int64_t> indices_;
  const LoaderOptions options_;
  const std::int64_t batches_;
  std::vector<float> normalized_;  // [channel][byte] -> value; constant after construction.
  std::int64_t taken_ = 0;         // Batches that next() has returned. Written under mutex_.

  // Protected by mutex_.
  std::mutex mutex_;
  std::condition_variable slot_filled_;
  std::condition_variable slot_freed_;
  std::vector<Slot> slots_;
  std::int64_t claimed_ = 0;  // Batches that a thread has begun.
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace ddprun::trainer
