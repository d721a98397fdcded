// Batches of a data set that lies whole in the memory of the device (--resident-data): one kernel
// gathers, shifts, mirrors and normalises each, and nothing is copied but an epoch's plan.
#pragma once

#include <vector>

#include "trainer/data/batch_loader.h"
#include "trainer/data/resident_samples.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// Larger sets are not for this: the model needs the memory.
inline constexpr std::int64_t resident_bytes_max = std::int64_t{4} << 30;

// In the device's memory, once for a run.
class ResidentSet {
 public:
  // The set must be one that reason_against_residence() has nothing against. `normalization`: with
  // which all batches are made.
  ResidentSet(const Dataset& dataset, const Normalization& normalization, torch::Device device);

  const Dataset& dataset() const { return dataset_; }
  torch::Device device() const { return pixels_.device(); }
  // Without what says which samples, how, and where to.
  GatherBatch batch() const;
  std::int64_t bytes() const { return pixels_.numel(); }

 private:
  const Dataset& dataset_;
  torch::Tensor pixels_, labels_, table_;
};

// The images are those that BatchLoader makes of the same indices and options, bit for bit.
class ResidentBatches : public BatchSource {
 public:
  ResidentBatches(const ResidentSet& set, std::vector<std::int64_t> indices,
                  std::int64_t batch_size, const SampleOptions& options);

  std::int64_t batches() const override;
  std::int64_t taken() const override { return taken_; }
  std::optional<Batch> next() override;
  const std::vector<SkippedImage>& skipped() const override { return skipped_; }

 private:
  const ResidentSet& set_;
  const std::vector<std::int64_t> indices_;
  const std::int64_t batch_size_;
  const bool channels_last_;
  torch::Tensor samples_;  // Of all indices, on the device.
  std::int64_t taken_ = 0;
  const std::vector<SkippedImage> skipped_;  // None: what is resident has been read.
};

}  // namespace ddprun::trainer
