// Ranks as people read them.
//
// A core: values in, text out.
#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

// "rank 1", "ranks 0-2, 5"; of very many that are no neighbours the first ones, and how many.
std::string rank_names(std::vector<int> ranks);

}  // namespace ddprun::launcher
