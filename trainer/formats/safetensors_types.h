// The dtypes of safetensors files in LibTorch's terms; for their reader and writer only.
#pragma once

#include <array>

#include "worker/torch/libtorch.h"

namespace ddprun::trainer::safetensors_format {

struct DtypeName {
  const char* name;
  torch::ScalarType type;
};
inline constexpr std::array<DtypeName, 10> dtypes{{{"F64", torch::kFloat64},
                                                   {"F32", torch::kFloat32},
                                                   {"F16", torch::kFloat16},
                                                   {"BF16", torch::kBFloat16},
                                                   {"I64", torch::kInt64},
                                                   {"I32", torch::kInt32},
                                                   {"I16", torch::kInt16},
                                                   {"I8", torch::kInt8},
                                                   {"U8", torch::kUInt8},
                                                   {"BOOL", torch::kBool}}};

}  // namespace ddprun::trainer::safetensors_format
