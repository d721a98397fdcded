// Prefixes for one rank and for several: neighbours are written as a range, or eight ranks would
// fill half a line.
#include "launcher/output/prefix.h"

#include "launcher/output/placeholders.h"

namespace ddprun::launcher {
std::string rank_set(const std::vector<int>& ranks, int base) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < ranks.size(); first = last + 1) {
    last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(base + ranks[first]);
    if (last > first) text += '-' + std::to_string(base + ranks[last]);
  }
  return text;
}

std::string LinePrefix::of(int local_rank) const { return of(std::vector<int>{local_rank}); }

std::string LinePrefix::of(const std::vector<int>& local_ranks) const {
  return fill_placeholders(pattern, {{"role_name", role},
                                     {"local_rank", rank_set(local_ranks)},
                                     {"rank", rank_set(local_ranks, rank_base)}});
}

}  // namespace ddprun::launcher
