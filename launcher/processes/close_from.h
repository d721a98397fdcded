// Leaves a process that was just made no descriptors but those that it was given.
#pragma once

namespace ddprun::launcher {

// Closes `first` and all above it, in this process. System calls only, nothing is allocated: for a
// child that shares its parent's memory until execve. `first` is above 0.
void close_from(int first);

}  // namespace ddprun::launcher
