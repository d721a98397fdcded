// Which tensors can be looked at as they lie in memory, and which are left to LibTorch.
#include "trainer/checkpoint/finite_tensor.h"

#include <optional>
#include <span>

#include "trainer/checkpoint/finite_values.h"

namespace ddprun::trainer {
namespace {

std::optional<FloatKind> float_kind(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat16:
      return FloatKind::Half;
    case torch::kBFloat16:
      return FloatKind::BFloat16;
    case torch::kFloat32:
      return FloatKind::Single;
    case torch::kFloat64:
      return FloatKind::Double;
    default:
      return std::nullopt;
  }
}

}  // namespace

bool all_finite(const torch::Tensor& tensor) {
  const auto kind = float_kind(tensor);
  if (!kind) return true;
  // LibTorch's takes a pass for each of several tensors of its own.
  if (tensor.is_cpu() && tensor.is_non_overlapping_and_dense()) {
    return all_finite({static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()}, *kind);
  }
  const torch::NoGradGuard no_grad;
  return torch::isfinite(tensor).all().item<bool>();
}

}  // namespace ddprun::trainer
