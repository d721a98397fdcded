// Turns a list of indices into batches, ahead of the training loop when it has threads.
//
// What a batch holds depends on the indices and the options alone, not on the threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "trainer/data/dataset.h"
#include "trainer/data/prefetch.h"
#include "trainer/data/sample_maker.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

struct Batch {
  // (N, C, H, W) float, normalised, or bytes that are not; the loader's on the CPU, or where its
  // decoder has made them.
  torch::Tensor images;
  torch::Tensor labels;               // (N) int64
  std::vector<std::int64_t> indices;  // (N) Of the images in the data set.
};

// Page-locked memory is copied while the host goes on: LibTorch uses it again after the copy alone.
inline torch::Tensor to_device(const torch::Tensor& tensor, torch::Device device) {
  return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/true);
}

// One pass over some indices of a data set.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual std::int64_t batches() const = 0;
  // That next() has returned, or left out because none of their images could be read.
  virtual std::int64_t taken() const = 0;
  // The next batch, or nothing after the last.
  virtual std::optional<Batch> next() = 0;
  // The images that could not be read, of the batches so far, as often as they were asked for.
  virtual const std::vector<SkippedImage>& skipped() const = 0;
};

// Makes images from their JPEG files in the place of the loader's thread. For one thread.
class BatchDecoder {
 public:
  virtual ~BatchDecoder() = default;

  // A batch begins: what was taken for one that was not ended is forgotten.
  virtual void begin() = 0;
  // Takes the file for place `place` of the batch being made. False: the loader decodes it.
  virtual bool take(std::int64_t place, std::span<const std::uint8_t> file, ImageSize size,
                    const SamplePlan& plan) = 0;
  // Ends the batch: images of which a file was taken are made, and batch.images may be on another
  // device afterwards, with all work on it done. False: it is as it was, and the loader has to make
  // all of it.
  virtual bool finish(Batch& batch) = 0;
};

struct LoaderOptions {
  std::int64_t batch_size = 64;
  // Threads make parts of so many images, which next() puts together: a step of many micro batches
  // would otherwise be one thread's work, and twice as many of them be held as there are threads.
  // 0: whole batches.
  std::int64_t part_size = 0;
  int threads = 1;  // 0: batches are made inside next().
  // Where the batches go. For a GPU they are made in page-locked memory, from which it copies, and
  // the threads choose it: LibTorch asks the GPU of the thread when it gives out such memory, and
  // would make a context on GPU 0 for each rank of the others.
  torch::Device device = torch::kCPU;
  // transform.side 0: as the data set has it. Normalization without channels: the data set's.
  // channels_last: memory order of `images`.
  SampleOptions sample;
  // Makes a decoder for each thread that makes batches. With SampleOptions::bytes alone.
  std::function<std::unique_ptr<BatchDecoder>()> make_decoder;
};

// One pass over `indices`; the last batch holds the rest. Where images are omitted batches are
// smaller, and a batch without any is left out. `dataset` must outlive the loader. Used by one
// thread. An error while making a batch is thrown by the next() that would return it.
class BatchLoader : public BatchSource {
 public:
  BatchLoader(const Dataset& dataset, std::vector<std::int64_t> indices, LoaderOptions options);
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  std::int64_t batches() const override { return batches_; }
  std::int64_t taken() const override { return taken_; }
  std::optional<Batch> next() override;
  const std::vector<SkippedImage>& skipped() const override { return skipped_; }

 private:
  struct Made {
    Batch batch;
    std::vector<SkippedImage> skipped;
  };

  // What makes batches, for one thread.
  struct Tools {
    SampleMaker maker;
    std::unique_ptr<BatchDecoder> decoder;  // None where the loader decodes.
  };
  // Shared, as the std::function that makes batches must be copyable.
  std::shared_ptr<Tools> make_tools() const;
  Made make_part(std::int64_t number, Tools& tools) const;
  Made make_part(std::int64_t number, SampleMaker& maker, BatchDecoder* decoder) const;
  std::int64_t images_of(std::int64_t batch) const;
  Made take_parts(std::int64_t images);
  // Memory for so many images as those of this one.
  Batch room_for(std::int64_t images, const Batch& part) const;

  const Dataset& dataset_;
  const std::vector<std::int64_t> indices_;
  const LoaderOptions options_;
  const std::int64_t batches_;
  const std::int64_t parts_per_batch_;
  std::int64_t taken_ = 0;
  std::shared_ptr<Tools> tools_;  // Of next(), without threads.
  std::vector<SkippedImage> skipped_;
  std::optional<Prefetch<Made>> prefetch_;  // Of parts. The last: its threads use all the others.
};

}  // namespace ddprun::trainer
