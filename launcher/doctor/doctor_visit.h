// `ddprun doctor`: asks a probe on each host, over ssh as a job's nodes are started, and tells what
// came of it. Nothing is left on any host when this process ends, however it ends.
#pragma once

#include <string>

#include "launcher/doctor/doctor_options.h"

namespace ddprun::launcher {

// Returns the exit status: 0, or 1 where something is red. Throws std::runtime_error when the
// hostfile cannot be written. `platform`: what `ddprun env` says here.
int run_doctor(const DoctorOptions& options, const std::string& launcher_path,
               const std::string& platform);

}  // namespace ddprun::launcher
