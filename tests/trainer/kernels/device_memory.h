// For tests of the kernels of a step, on the CPU and on a GPU alike: is there one, its stream, and
// memory there whose surroundings are watched.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/worker/torch/no_gpu.h"
#include "trainer/kernels/device/number_format.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer::testing {

// Of tensors: around a block, a chunk, and several of each.
inline const std::vector<std::int64_t> odd_sizes{0, 1, 255, 256, 257, 4095, 4096, 4097, 9001};

using ddprun::worker::no_gpu;

// That of LibTorch; null on the CPU.
void* stream_of(torch::Device device);
// Until all that was queued there is done.
void wait_for(torch::Device device);

template <typename T>
torch::Tensor bytes_on(torch::Device device, const std::vector<T>& values) {
  return torch::from_blob(const_cast<T*>(values.data()),
                          {static_cast<std::int64_t>(values.size() * sizeof(T))}, torch::kUInt8)
      .clone()
      .to(device);
}

// A tensor with elements around it that nobody may write to. With some before it, it begins where
// a vector does not.
struct Guarded {
  static constexpr std::int64_t behind = 7;
  static constexpr float mark = 123;  // Which bytes hold, too.
  Guarded(torch::Device device, const torch::Tensor& values, torch::ScalarType type,
          std::int64_t elements_before = 0)
      : before(elements_before),
        all(torch::cat({torch::full({before}, mark, type), values.to(type),
                        torch::full({behind}, mark, type)})
                .to(device)),
        own(all.narrow(0, before, values.numel())) {}
  bool whole() const {
    const torch::Tensor around =
        torch::cat({all.narrow(0, 0, before), all.narrow(0, before + own.numel(), behind)});
    return (around.cpu().to(torch::kFloat32) ==
            torch::full({}, mark, all.scalar_type()).to(torch::kFloat32))
        .all()
        .item<bool>();
  }
  std::int64_t before;
  torch::Tensor all, own;
};

inline torch::ScalarType type_of(NumberFormat format) {
  return format == NumberFormat::Float32    ? torch::kFloat32
         : format == NumberFormat::BFloat16 ? torch::kBFloat16
                                            : torch::kHalf;
}

}  // namespace ddprun::trainer::testing
