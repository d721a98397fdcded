// Where LibTorch computes, in the kernels' words: the device, its stream, and memory of it that
// holds a table of theirs.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "trainer/kernels/device/step_kernels.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

// While it lives, the device is the current one: a kernel can only be queued on a stream of that.
class OnDevice {
 public:
  explicit OnDevice(torch::Device device) : guard_(device) {
    if (device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device.type());
    stream_ = guard.getStreamNativeHandle(guard.getStream(device));
  }
  // LibTorch's current one, so that its work before and after is in order with ours; null on a CPU.
  void* stream() const { return stream_; }

 private:
  c10::DeviceGuard guard_;
  void* stream_ = nullptr;
};

inline bool has_number_format(const torch::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == torch::kFloat32 || type == torch::kBFloat16 || type == torch::kHalf;
}

// Where that is true.
inline NumberFormat number_format_of(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kHalf       ? NumberFormat::Float16
         : tensor.scalar_type() == torch::kBFloat16 ? NumberFormat::BFloat16
                                                    : NumberFormat::Float32;
}

// For kernels that read and write vectors (number_vector.h).
inline bool is_aligned(const torch::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % alignof(VectorWords) == 0;
}

// A copy in the device's memory. The host does not wait: LibTorch keeps page-locked memory until
// the copy is done, and memory of the device for what was queued on its stream.
template <typename T>
torch::Tensor upload(const std::vector<T>& values, torch::Device device) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  const torch::Tensor here =
      torch::empty({bytes}, torch::dtype(torch::kUInt8).pinned_memory(device.is_cuda()));
  if (bytes > 0) std::memcpy(here.data_ptr(), values.data(), static_cast<std::size_t>(bytes));
  return here.to(device, torch::kUInt8, /*non_blocking=*/true);
}

template <typename T>
T* pointer_to(const torch::Tensor& table) {
  return static_cast<T*>(table.data_ptr());
}

}  // namespace ddprun::trainer
