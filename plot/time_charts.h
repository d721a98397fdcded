// Where time went: the shares of each rank's steps, and what happened to a job when. A core.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plot/run_records.h"

namespace ddprun::plot {

// Parts of a rank's time in steps; they add up to 1.
struct TimeShares {
  double data = 0;
  double waiting = 0;  // 0 where it is not known: then it is a part of `compute`.
  double compute = 0;
};
TimeShares shares_of(const RankTime& time);

// One bar for each rank, at most 64 of them: then those that computed longest, who hold up the
// others.
// "" without ranks.
std::string draw_shares(const std::string& title, const std::map<std::int64_t, RankTime>& ranks);

// One row for each launcher with its attempts, and a list of what happened. "" without launchers.
std::string draw_timeline(const std::string& title, const std::vector<LauncherTrack>& launchers);

}  // namespace ddprun::plot
