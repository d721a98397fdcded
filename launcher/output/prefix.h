// What stands before a console line: who wrote it. Pure. A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

struct LinePrefix {
  // May hold ${role_name}, ${local_rank}, ${rank}, ${hostname} (placeholders.h); "" = none.
  std::string pattern;
  std::string role;
  int rank_base = 0;  // Rank of local rank 0.
  std::string host = {};

  bool operator==(const LinePrefix&) const = default;
  std::string of(int local_rank) const;
  // One for several: "[default0-3,7]:". Ascending local ranks.
  std::string of(const std::vector<int>& local_ranks) const;
};

// The first name in a pattern that is none of these, or "".
std::string unknown_in_prefix(const std::string& pattern);

// How many columns of a terminal the text takes, which is UTF-8; escape codes are not understood.
int columns_of(std::string_view text);

// "0-3,7" for {0, 1, 2, 3, 7}, with `base` added to each.
std::string rank_set(const std::vector<int>& ranks, int base = 0);

}  // namespace ddprun::launcher
