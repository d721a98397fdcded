// Which option or variable a value of the job comes from, for people: `ddprun env` and --dry-run.
//
// A core: values in, text out.
#pragma once

#include <string>

#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

// "--nnodes=2", "PET_NNODES=2" or "default". `option`: by its name in the table.
// LaunchOptions::endpoint_sources has what several options can decide.
std::string source_of(const LaunchOptions& options, const std::string& option);

}  // namespace ddprun::launcher
