// See prefix.h.
#include "launcher/output/prefix.h"

#include <map>

namespace ddprun::launcher {
namespace {

std::string substitute(std::string text, const std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : values) {
    const std::string macro = "${" + name + "}";
    for (std::size_t at = 0; (at = text.find(macro, at)) != std::string::npos; at += value.size()) {
      text.replace(at, macro.size(), value);
    }
  }
  return text;
}

}  // namespace

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
  return substitute(pattern, {{"role_name", role},
                              {"local_rank", rank_set(local_ranks)},
                              {"rank", rank_set(local_ranks, rank_base)}});
}

}  // namespace ddprun::launcher
