// Pods, cloud batch services and batch systems: they start one process on each node, or one on the
// first of their hosts. A core: no sockets, threads or clock.
#pragma once

#include "launcher/options/platform.h"

namespace ddprun::launcher {

Platform read_cloud(const Surroundings& around);  // Kubernetes, SageMaker, AWS Batch, SkyPilot.
Platform read_batch_system(const Surroundings& around);  // LSF, PBS.

}  // namespace ddprun::launcher
