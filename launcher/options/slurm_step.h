// What srun has told this process about its step, as options: `srun -N2 ddprun PROGRAM` is one job
// of two nodes, and needs no script that works out where they meet. A core: no sockets, threads or
// clock.
#pragma once

#include <string>

#include "launcher/options/arguments.h"

namespace ddprun::launcher {

// Adds what the step says about options that were not given: nodes, node rank, address, port and
// id. Nothing outside of a step, in the shell of a batch script or an allocation, or with
// --standalone. Throws UsageExit where the step and the options contradict each other, or the step
// starts several launchers on a node: each would be a job of its own, silently.
void add_slurm_step(SplitArguments& split, const EnvironmentLookup& environment);

// The first of "n[03-07,9],m1": "n03". A list with no host is returned as it is.
std::string first_host(const std::string& host_list);

// The port of a step, the same on all of its nodes.
int slurm_port(long long job, long long step);

}  // namespace ddprun::launcher
