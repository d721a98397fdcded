// Names that nobody else has, and that nobody can guess: of jobs, agents, meetings, shared memory.
#pragma once

#include <cstddef>
#include <string>

namespace ddprun::rendezvous {

// Two hexadecimal digits for each of `bytes` random bytes (at most 64), from the kernel. Throws
// std::system_error.
std::string random_id(std::size_t bytes = 16);

}  // namespace ddprun::rendezvous
