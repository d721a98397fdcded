// `ddprun env`: what a job started here would be, from which variable or option each value comes,
// and what was found and not used. A core: no sockets, threads or clock.
#pragma once

#include <string>

#include "launcher/options/launch_options.h"
#include "launcher/options/platform.h"

namespace ddprun::launcher {

// `refusal`: why no job can be started here, as an error would say it; "" = it can, and `options`
// are its.
std::string describe_environment(const Platform& platform, const LaunchOptions& options,
                                 const std::string& refusal);

}  // namespace ddprun::launcher
