// What platforms are recognised by, as this process finds it.
#pragma once

#include "launcher/options/platform.h"

namespace ddprun::launcher {

Surroundings surroundings(const EnvironmentLookup& environment);

}  // namespace ddprun::launcher
