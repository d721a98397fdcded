// Stacks and ends of logs of all nodes of a job, for the commands that show them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/watch/found_looks.h"

namespace ddprun::launcher {

// Of a job on this host alone as stack_lines() has them; else its launcher, or its coordinator,
// asks all nodes. Throws RemoteJobError.
std::vector<std::string> job_stack_lines(FoundLooks& found, const FoundJob& job,
                                         std::optional<int> rank);

// The ends of the logs of the ranks that are not on this host. Throws RemoteJobError.
std::vector<std::string> other_log_lines(FoundLooks& found, const FoundJob& job,
                                         std::optional<int> rank, int lines);

}  // namespace ddprun::launcher
