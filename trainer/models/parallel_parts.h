// Shares work out over LibTorch's threads.
#pragma once

#include <cstdint>
#include <functional>

namespace ddprun::trainer {

// Calls work(begin, end) for pieces that cover 0 .. count-1 once, from as many threads as LibTorch
// computes with. Returns when all is done; throws what a piece threw.
void run_parallel(std::int64_t count, const std::function<void(std::int64_t, std::int64_t)>& work);

}  // namespace ddprun::trainer
