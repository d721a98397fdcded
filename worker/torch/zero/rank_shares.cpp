// A sort, and one pass.
#include "worker/torch/zero/rank_shares.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace ddprun::worker {

std::vector<int> share_among_ranks(const std::vector<std::int64_t>& bytes, int world_size) {
  std::vector<std::size_t> largest_first(bytes.size());
  std::iota(largest_first.begin(), largest_first.end(), 0);
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(world_size));
  std::vector<int> rank_of(bytes.size());
  for (const std::size_t parameter : largest_first) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += bytes[parameter];
    rank_of[parameter] = static_cast<int>(least - load.begin());
  }
  return rank_of;
}

}  // namespace ddprun::worker
