// MPI launchers and their kin: they count processes, which are nodes only where each has a host of
// its own. A core: no sockets, threads or clock.
#pragma once

#include "launcher/options/platform.h"

namespace ddprun::launcher {

// Those that are nearer to a process than a step of Slurm is, since they start their daemons by
// one.
Platform read_mpi(const Surroundings& around);
// Those that Slurm's own step may play.
Platform read_process_manager(const Surroundings& around);

}  // namespace ddprun::launcher
