// Stacks and ends of logs of all nodes of a job, for the commands that show them; and the stacks of
// one node, for its launcher.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/watch/found_looks.h"

namespace ddprun::launcher {

// "rank 3 (pid 4127), step 12, backward"
std::string stack_headline(const RankSnapshot& rank);

// A block of lines for each of this node's ranks that runs, or for this one. `told`: what workers
// have answered themselves, by rank. Takes 9 s at most.
std::vector<std::string> node_stack_lines(const JobSnapshot& own,
                                          const std::map<int, std::string>& told,
                                          std::optional<int> rank);

// Of a job on this host alone they are looked up from here, so that a launcher that hangs can be
// looked at, too; else its launcher, or its coordinator, asks all nodes. Throws RemoteJobError.
std::vector<std::string> job_stack_lines(FoundLooks& found, const FoundJob& job,
                                         std::optional<int> rank);

// The ends of the logs of the ranks that are not on this host. Throws RemoteJobError.
std::vector<std::string> other_log_lines(FoundLooks& found, const FoundJob& job,
                                         std::optional<int> rank, int lines);

}  // namespace ddprun::launcher
