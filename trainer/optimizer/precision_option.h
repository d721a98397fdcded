// In what forward and loss compute, as --precision says it; without LibTorch.
#pragma once

namespace ddprun::trainer {

enum class PrecisionOption { Fp32, Bf16, Fp16 };

constexpr const char* name_of(PrecisionOption precision) {
  return precision == PrecisionOption::Fp32   ? "fp32"
         : precision == PrecisionOption::Bf16 ? "bf16"
                                              : "fp16";
}

}  // namespace ddprun::trainer
