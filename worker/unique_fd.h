// How programs on top of workers own a file descriptor: as ddprun itself.
#pragma once

#include "rendezvous/unique_fd.h"

namespace ddprun::worker {

using rendezvous::UniqueFd;

}  // namespace ddprun::worker
