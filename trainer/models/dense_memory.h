// How a tensor's memory looks to the kernels of trainer/kernels: dense, in one of two orders, of
// one of two types.
#pragma once

#include "trainer/kernels/vector_clones.h"
#include "worker/torch/libtorch.h"

namespace ddprun::trainer {

inline bool is_channels_last(const torch::Tensor& x) {
  return !x.is_contiguous() && x.is_contiguous(torch::MemoryFormat::ChannelsLast);
}

inline torch::MemoryFormat format_of(const torch::Tensor& x) {
  return is_channels_last(x) ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
}

inline bool has_kernel_memory(const torch::Tensor& x) {
  return x.is_cpu() && x.dim() == 4 && x.is_contiguous(format_of(x)) &&
         (x.scalar_type() == torch::kFloat32 || x.scalar_type() == torch::kBFloat16);
}

// Null for an undefined tensor.
template <typename Value>
Value* values(const torch::Tensor& tensor) {
  return tensor.defined() ? static_cast<Value*>(tensor.data_ptr()) : nullptr;
}

// Calls work(Value{}) with the kernels' type for this tensor.
template <typename Work>
void with_value_type(const torch::Tensor& x, const Work& work) {
  x.scalar_type() == torch::kBFloat16 ? work(BFloat16{}) : work(float{});
}

}  // namespace ddprun::trainer
