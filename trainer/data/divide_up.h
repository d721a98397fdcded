// How many parts of a size hold all of something, the last one whole or not: batches, and shares.
#pragma once

#include <cstdint>

namespace ddprun::trainer {

// `all` >= 0, `part` > 0.
constexpr std::int64_t divide_up(std::int64_t all, std::int64_t part) {
  return (all + part - 1) / part;
}

}  // namespace ddprun::trainer
