// Where a worker finds its key: what launcher and workers have to agree on (worker_key.h).
#pragma once

namespace ddprun::rendezvous {

// The variable that names the descriptor, and the descriptor.
inline constexpr const char* worker_key_variable = "DDPRUN_SECRET_FD";
inline constexpr int worker_key_fd = 3;

}  // namespace ddprun::rendezvous
