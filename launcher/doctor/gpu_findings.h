// What is right and wrong with a machine's GPUs, their driver and NCCL. A core: no sockets, threads
// or clock.
#pragma once

#include "launcher/doctor/finding_list.h"
#include "launcher/doctor/machine_facts.h"

namespace ddprun::launcher {

void examine_gpus(const GpuFacts& gpu, FindingList& found);

}  // namespace ddprun::launcher
