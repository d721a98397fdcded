// What a worker was told on its command line (InitMethod of worker_env.h), as variables.
// A core: no sockets, threads or clock.
#pragma once

#include <map>
#include <string>

#include "worker/worker_env.h"

namespace ddprun::worker {

// The variables that would say the same as `method`, whose url is `place`; they win over those of
// `environment`. `environment_has_rank`: some launcher said which worker this is. Throws
// WorkerEnvError where the two do not make a whole.
std::map<std::string, std::string> init_variables(const InitMethod& method,
                                                  const MeetingPlace& place,
                                                  bool environment_has_rank,
                                                  const EnvironmentLookup& environment);

}  // namespace ddprun::worker
