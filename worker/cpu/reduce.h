// Combines the contributions of all ranks elementwise, over a fixed binary tree.
//
//   ranks 0 1 2 3 4:   ((0 + 1) + (2 + 3)) + 4      neighbours at distance 1, then 2, then 4 ...
//
// The tree depends on the number of ranks alone, never on who computes it, how a buffer was cut or
// how wide the vector unit is, so every placement of ranks gives the same bits. Float16 and
// BFloat16 are added in float32 over the whole tree and rounded once, to nearest even. Average is
// the sum divided by the number of ranks, before that rounding. Max and Min give NaN if any
// contribution is NaN. Integer sums wrap around.
#pragma once

#include <cstddef>
#include <span>

#include "worker/communicator.h"

namespace ddprun::worker {

inline constexpr int tree_ranks_max = 2047;  // Of one tree.

// Writes the combination of `sources` (source i is rank i's, `count` elements each, any alignment)
// to every destination. A destination may be one of the sources; partial overlap is not allowed.
// `streaming` writes past the cache: for destinations that do not fit it.
void reduce_tree(std::span<const void* const> sources, std::span<void* const> destinations,
                 std::size_t count, DataType type, ReduceOp op, bool streaming);

}  // namespace ddprun::worker
