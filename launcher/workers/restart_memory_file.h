// Memory of this node that outlives its workers (--restart-memory), so that a restart need not read
// a disk.
//
// It has no name: it is gone with the last process that holds it, however that ends. Its size is
// sealed, so workers cannot take more.
#pragma once

#include <cstddef>

#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {

// Of this many bytes; pages count from when they are written. Throws std::system_error.
rendezvous::UniqueFd make_restart_memory(std::size_t bytes);

}  // namespace ddprun::launcher
