// A snapshot as people read it: in 80 columns, a line for each rank.
//
// A core: values in, text out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/status/job_snapshot.h"

namespace ddprun::launcher {

// A moment's snapshot of a job, and an earlier one: processor time is shown as it was between.
struct Look {
  JobSnapshot now;
  std::optional<JobSnapshot> before;
};

// Of the day, as people's clocks show it: "12:01:33". `zone_s`: seconds east of Greenwich.
std::string clock_text(std::int64_t time_unix_s, long zone_s);

// "night: ./train (launcher 4100 on node1)"
std::string headline(const JobSnapshot& job);

// All that is known of one job, with the ends of lines. No line is longer than `columns`.
std::string status_text(const Look& look, std::size_t columns, long zone_s);

// A line for each of several jobs, under a head.
std::string list_text(const std::vector<JobSnapshot>& jobs, std::size_t columns);

// All jobs, one below the other.
std::vector<std::string> jobs_lines(const std::vector<Look>& looks, long zone_s);

// A screen of exactly `rows` lines of at most `columns`: what of `lines` fits above `keys`, from
// line `scroll` on, which is made to fit.
std::vector<std::string> screen_of(const std::vector<std::string>& lines, const std::string& keys,
                                   std::size_t rows, std::size_t columns, std::size_t& scroll);

// Whether `job` tells of the launcher that `other` is from: both are of one job.
bool shows(const JobSnapshot& job, const JobSnapshot& other);

// Whether a person who writes `word` means this job: its launcher's pid, its id, its program.
bool is_called(const JobSnapshot& job, const std::string& word);

}  // namespace ddprun::launcher
