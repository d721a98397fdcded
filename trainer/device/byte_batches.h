// Batches that travel to the device as bytes, on a stream of their own, and are normalised there
// (--device-normalize): a quarter of the bytes of floats, while the step before still computes.
//
//   copy stream     ... wait until the slot is free | copy batch n + 1 into it
//   compute stream  ... step n ............................................... | normalise | n + 1
#pragma once

#include <c10/core/Event.h>

#include <array>
#include <optional>

#include "trainer/data/batch_loader.h"
#include "trainer/kernels/device/step_kernels.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// The images are those of a BatchLoader with the same options, bit for bit. On a CPU, where there
// are no streams, the same without them. One thread.
// Where the loader's decoder has made the images on the device, no bytes of them are copied.
class ByteBatches : public BatchSource {
 public:
  // `options`: with a side and a normalization, which are not taken from the data set here.
  ByteBatches(const Dataset& dataset, std::vector<std::int64_t> indices,
              const LoaderOptions& options, torch::Device device);

  std::int64_t batches() const override { return loader_.batches(); }
  std::int64_t taken() const override { return loader_.taken(); }
  // On the device: what is queued next on the current stream finds it there.
  std::optional<Batch> next() override;
  const std::vector<SkippedImage>& skipped() const override { return loader_.skipped(); }

 private:
  // Memory that one batch after the other is copied to. Two of them, so that a copy need not wait
  // for the batch before to be normalised.
  struct Slot {
    torch::Tensor bytes, labels;
    std::optional<c10::Event> copied, read;  // None on a CPU.
  };
  bool is_there(const Batch& batch) const;
  Slot make_slot(const LoaderOptions& options) const;
  void copy_to(Slot& slot, const Batch& batch);
  Batch take_from(Slot& slot, Batch batch) const;

  const Dataset& dataset_;
  const torch::Device device_;
  const bool channels_last_;
  torch::Tensor table_;
  std::optional<c10::Stream> copies_;  // None on a CPU.
  std::array<Slot, 2> slots_;
  std::size_t next_slot_ = 0;
  BatchLoader loader_;
};

}  // namespace ddprun::trainer
