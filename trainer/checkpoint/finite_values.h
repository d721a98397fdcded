// Whether numbers are numbers: before a checkpoint is written, in one pass over its memory.
//
// Nothing can be trained from an infinity, and it hides well: batch normalisation divides by a
// running variance of inf and gives 0. A core: no sockets, threads or clock.
#pragma once

#include <cstddef>
#include <span>

namespace ddprun::trainer {

enum class FloatKind { Half, BFloat16, Single, Double };

// No NaN and no infinity among the numbers of that kind that `bytes` holds, at their alignment.
bool all_finite(std::span<const std::byte> bytes, FloatKind kind);

}  // namespace ddprun::trainer
