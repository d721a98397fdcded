// What keeps strangers out of this job, made from its options: the key that its nodes prove, and
// the words for who does not have it.
#pragma once

#include <memory>
#include <string>

#include "launcher/options/launch_options.h"
#include "rendezvous/secure/tls_context.h"

namespace ddprun::launcher {

// Null where none is needed (needs_secret() of endpoint.h); that --auth none is why, it says in the
// log. Reads the secret, makes it where it is not there yet, and forgets it again: what stays is
// the key for the control connections. Throws rendezvous::SecurityError.
std::shared_ptr<const rendezvous::TlsContext> open_control_key(const LaunchOptions& options);

// What to do on this node when the job has another secret; begins with "; ".
std::string other_secret_advice(const LaunchOptions& options);

}  // namespace ddprun::launcher
