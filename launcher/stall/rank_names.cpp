// Every other one of thousands would be kilobytes in one line.
#include "launcher/stall/rank_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace ddprun::launcher {
namespace {

constexpr int parts_max = 64;

}  // namespace

std::string rank_names(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  int parts = 0;
  for (std::size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    if (++parts > parts_max) {
      text += fmt::format(", ... ({} in all)", ranks.size());
      break;
    }
    for (end = begin + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1; ++end) {
    }
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[begin]);
    if (end - begin > 1) text += fmt::format("-{}", ranks[end - 1]);
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace ddprun::launcher
