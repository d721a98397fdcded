// The limit of a meeting as messages name it.
#include "worker/wording.h"

#include "rendezvous/time_text.h"
#include "worker/communicator.h"

namespace ddprun::worker {

std::string within_limit(const CommunicatorOptions& options) {
  return "within " + rendezvous::time_text(options.connect_timeout) + " (" +
         options.connect_timeout_name + " sets the limit)";
}

}  // namespace ddprun::worker
