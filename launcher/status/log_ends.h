// The ends of a node's log files, for somebody on another host.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/status/job_snapshot.h"

namespace ddprun::launcher {

// Of all ranks of this node, or of this one: a line for each line, "[RANK]: TEXT", the last `lines`
// of each file (0: what is within a bound), and a sentence where there is none, or more than is
// shown. Of a line that is redrawn ('\r') the last state. Reads files, which may block.
std::vector<std::string> log_lines(const JobSnapshot& own, std::optional<int> rank, int lines);

}  // namespace ddprun::launcher
