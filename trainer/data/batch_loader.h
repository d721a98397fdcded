// Turns a list of indices into batches, ahead of the training loop when it has threads.
//
//   threads:  claim batch k -> make its samples in place -> slot k % slots    loop: next() in order
//
// What a batch holds depends on the indices and the options alone, not on the threads.
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
#include "trainer/data/sample_maker.h"

namespace ddprun::trainer {

struct Batch {
  torch::Tensor images;               // (N, C, H, W) float on the CPU, normalised.
  torch::Tensor labels;               // (N) int64
  std::vector<std::int64_t> indices;  // (N) Of the images in the data set.
};

struct LoaderOptions {
  std::int64_t batch_size = 64;
  int threads = 1;      // 0: batches are made inside next().
  bool pinned = false;  // In page-locked memory, from which a GPU copies. Needs LibTorch with CUDA.
  // transform.side 0: as the data set has it. Normalization without channels: the data set's.
  // channels_last: memory order of `images`.
  SampleOptions sample;
};

// One pass over `indices`; the last batch holds the rest. Where images are omitted batches are
// smaller, and a batch without any is left out. `dataset` must outlive the loader. Used by one
// thread. An error while making a batch is thrown by the next() that would return it.
class BatchLoader {
 public:
  BatchLoader(const Dataset& dataset, std::vector<std::int64_t> indices, LoaderOptions options);
  ~BatchLoader();  // Stops the threads; unused batches are dropped.
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  std::int64_t batches() const { return batches_; }

  // The next batch, or nothing after the last.
  std::optional<Batch> next();

  // The images that could not be read, of the batches so far, as often as they were asked for.
  const std::vector<SkippedImage>& skipped() const { return skipped_; }

 private:
  struct Made {
    Batch batch;
    std::vector<SkippedImage> skipped;
  };
  struct Slot {
    std::optional<Made> made;
    std::exception_ptr error;
  };

  Made make_batch(std::int64_t number, SampleMaker& maker) const;
  Made next_made();
  void run_thread();
  Slot& slot_of(std::int64_t number) {
    return slots_[static_cast<std::size_t>(number) % slots_.size()];
  }

  const Dataset& dataset_;
  const std::vector<std::int64_t> indices_;
  const LoaderOptions options_;
  const std::int64_t batches_;
  std::int64_t taken_ = 0;            // Batches that next() has returned. Written under mutex_.
  std::optional<SampleMaker> maker_;  // Of next(), without threads.
  std::vector<SkippedImage> skipped_;

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
