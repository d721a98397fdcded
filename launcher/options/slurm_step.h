// What srun has told this process about its step: `srun -N2 ddprun PROGRAM` is one job of two
// nodes, and needs no script that works out where they meet. A core: no sockets, threads or clock.
#pragma once

#include <string>

#include "launcher/options/platform.h"

namespace ddprun::launcher {

// The step as a platform. None outside of a step, or in the shell of a batch script or an
// allocation, which is on one node whatever the allocation has; `notes` says so of the latter.
Platform read_slurm_step(const EnvironmentLookup& environment);

// The first of "n[03-07,9],m1": "n03". A list with no host is returned as it is.
std::string first_host(const std::string& host_list);

}  // namespace ddprun::launcher
