// Where all ranks of a job stand, for a report: of a thousand ranks nearly all wait at the same
// place, and the few that do not are what it is read for. So equal stacks are there once, and the
// rarest ones first.
//
// Equal are those with the same step, phase and calls; what differs between any two processes
// (pids, threads' numbers, addresses) is left out of the comparison.
//
// A core: values in, text out. What is read came from other machines: all that is kept is bounded.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/status/node_lines.h"

namespace ddprun::launcher {

struct EqualStacksLimits {
  std::size_t bytes_max = 128 << 10;  // Of all lines. What is left out for it is said.
  std::size_t lines_max = 80;         // Of one stack.
};

// `nodes`: as they answer `stacks` (job_lines.h), by node rank. First which ranks each node has
// told of, or why it has not, then the stacks.
std::vector<std::string> equal_stack_lines(std::vector<NodeLines> nodes,
                                           const EqualStacksLimits& limits = {});

}  // namespace ddprun::launcher
