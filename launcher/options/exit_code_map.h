// --exit-code-map: other exit statuses for those that are ddprun's own, for schedulers that decide
// by a number whether a job is tried again. A core: no sockets, threads or clock.
#pragma once

#include <map>
#include <optional>

#include "launcher/options/arguments.h"
#include "rendezvous/control/first_cause.h"

namespace ddprun::launcher {

// "lost=138,preempted=138" -> {74: 138, 75: 138}. Throws UsageExit.
std::map<int, int> parse_exit_code_map(const GivenOption& given);

// What ddprun ends with where the job's status is `status`. A worker's own code is not ddprun's,
// and stays, but for 75, by which workers say the same.
int mapped_exit_status(const std::map<int, int>& map, int status,
                       const std::optional<rendezvous::FirstCause>& cause);

}  // namespace ddprun::launcher
