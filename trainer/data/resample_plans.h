// What the resize kernel (trainer/kernels/device/resample_kernel.h) is told of the images of a
// batch, so that it makes of the same pixels what SampleMaker makes of them.
// A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trainer/data/augment.h"
#include "trainer/kernels/device/resample_kernel.h"

namespace ddprun::trainer {

class ResamplePlans {
 public:
  // `side`: of samples, in pixels.
  explicit ResamplePlans(std::int64_t side) : side_(side) {}

  // `pixels`: the whole image, three interleaved channels, in the memory of the device; `place`: of
  // the sample in its batch.
  void add(const SamplePlan& plan, const std::uint8_t* pixels, std::int64_t row_bytes,
           std::int64_t place);

  // Of all images, for the memory of the device.
  const std::vector<std::int32_t>& tables() const { return tables_; }
  // With the tables at `tables`.
  std::vector<ResampledImage> images(const std::int32_t* tables) const;

 private:
  struct Begins {
    std::size_t columns = 0;
    std::size_t rows = 0;
  };

  const std::int64_t side_;
  std::vector<std::int32_t> tables_;
  std::vector<ResampledImage> images_;  // Without where their tables are,
  std::vector<Begins> begins_;          // which is so many values from the first.
};

}  // namespace ddprun::trainer
