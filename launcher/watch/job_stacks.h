// Where the processes of a job are just now.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/watch/job_connection.h"
#include "launcher/watch/job_snapshot.h"

namespace ddprun::launcher {

// "rank 3 (pid 4127), step 12, backward"
std::string stack_headline(const RankSnapshot& rank);

// A block of lines for each rank of the job that runs, or for this one. Python is looked into by
// py-spy where it is on PATH; of everything else the kernel tells what its threads wait for.
std::vector<std::string> stack_lines(const FoundJob& job, std::optional<int> rank);
// The same of this node's ranks; `answer`: of its launcher, to the question for stacks.
std::vector<std::string> stack_lines(const JobSnapshot& own, const std::string& answer,
                                     std::optional<int> rank);

}  // namespace ddprun::launcher
