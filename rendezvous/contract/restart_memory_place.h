// Where a worker finds the memory that outlives it: what launcher and workers have to agree on
// (worker/restart_memory.h).
#pragma once

namespace ddprun::rendezvous {

// The variable that names the descriptor, and the descriptor.
inline constexpr const char* restart_memory_variable = "DDPRUN_RESTART_MEMORY_FD";
inline constexpr int restart_memory_fd = 5;

}  // namespace ddprun::rendezvous
