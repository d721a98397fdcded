// Which option or variable a value of the job comes from, for people: `ddprun env` and --dry-run.
//
// A core: values in, text out.
#pragma once

#include <string>

#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

// "--nnodes=2", "PET_NNODES=2" or "default". `option`: by its name in the table.
std::string source_of(const LaunchOptions& options, const std::string& option);

// Of what several options may decide: the one that did.
std::string source_of_address(const LaunchOptions& options);
std::string source_of_port(const LaunchOptions& options);
std::string source_of_run_id(const LaunchOptions& options);

}  // namespace ddprun::launcher
