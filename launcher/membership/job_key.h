// What keeps strangers out of this job, made from its options: the key that its nodes prove, and
// the words for who does not have it.
#pragma once

#include <memory>
#include <string>

#include "launcher/options/launch_options.h"
#include "rendezvous/secure/tls_context.h"
#include "rendezvous/unique_fd.h"
#include "rendezvous/worker_key.h"

namespace ddprun::launcher {

// Keys derived from the job's secret, one for each use.
struct JobKeys {
  std::shared_ptr<const rendezvous::TlsContext> control;  // Between the agents.
  rendezvous::UniqueFd workers;                           // For this node's workers to inherit.
  std::shared_ptr<const rendezvous::WorkerKey> store;     // With --store-auth: the same.
};

// Empty where none is needed (needs_secret() of endpoint.h); that --auth none is why, it says in
// the log. Reads the secret, makes it where it is not there yet, and forgets it again. Throws
// rendezvous::SecurityError, or std::system_error when there is no memory.
JobKeys open_job_keys(const LaunchOptions& options);

// What to do on this node when the job has another secret; begins with "; ".
std::string other_secret_advice(const LaunchOptions& options);

}  // namespace ddprun::launcher
