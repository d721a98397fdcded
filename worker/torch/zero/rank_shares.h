// Which rank updates which parameter.
//
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <vector>

namespace ddprun::worker {

// The rank of each parameter, so that what the ranks have is about as much: the largest first, each
// to the rank that has least so far, as PyTorch's ZeroRedundancyOptimizer does (Graham's rule: at
// most 4/3 of the best). `bytes`: of each parameter. Equal ones keep their order, so that the
// answer depends on nothing else.
std::vector<int> share_among_ranks(const std::vector<std::int64_t>& bytes, int world_size);

}  // namespace ddprun::worker
