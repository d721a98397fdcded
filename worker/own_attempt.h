// Of which attempt this worker is, in the two forms that others are told
// (rendezvous/attempt_name.h).
#pragma once

#include <string>

#include "rendezvous/attempt_name.h"
#include "worker/worker_env.h"

namespace ddprun::worker {

inline rendezvous::Epoch epoch_of(const WorkerEnv& env) {
  return rendezvous::epoch_of(env.term.value_or(0), env.restart_count);
}

inline std::string attempt_name(const WorkerEnv& env) {
  return rendezvous::attempt_name(env.term, env.restart_count);
}

}  // namespace ddprun::worker
