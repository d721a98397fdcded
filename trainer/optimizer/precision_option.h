// In what forward and loss compute, as --precision says it; without LibTorch.
#pragma once

namespace ddprun::trainer {

enum class PrecisionOption { Fp32, Bf16, Fp16 };

}  // namespace ddprun::trainer
