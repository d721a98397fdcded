// Numbers in texts, for whoever stands above rendezvous/ and does not see it.
#pragma once

#include "rendezvous/parse_number.h"

namespace ddprun::worker {

using rendezvous::parse_number;

}  // namespace ddprun::worker
