// Whether the nodes of the job must prove a secret, and where it lies.
#pragma once

#include "launcher/options/arguments.h"
#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

// DDPRUN_SECRET_FILE, DDPRUN_AUTH and DDPRUN_ENCRYPT_GRADIENTS, where neither an option nor its
// PET_ variable was given.
void add_secret_variables(SplitArguments& split, const EnvironmentLookup& environment);

// Throws UsageExit. The file is not looked at before it is needed.
void decide_secret(const SplitArguments& given, const EnvironmentLookup& environment,
                   LaunchOptions& result);

}  // namespace ddprun::launcher
