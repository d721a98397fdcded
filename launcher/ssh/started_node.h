// The options of a node that ddprun -H has started on its host.
#pragma once

#include <string>

#include "launcher/hosts/node_channel.h"
#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

// Goes to the request's folder, takes its variables into this process's environment, and reads its
// arguments. Throws UsageExit as parse_options() does.
LaunchOptions started_node_options(const NodeChannel& starter, const std::string& launcher_path);

}  // namespace ddprun::launcher
