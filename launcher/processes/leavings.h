// What a process that the kernel takes apart still holds. Its memory is freed first, and all that
// others may be waiting for after that.
#pragma once

namespace ddprun::launcher {

// Of a process that is exiting: whether nothing of it can be in the way of a process that takes its
// place, but for the memory. It has no children, who would be found only when it is gone; no
// device, whose driver may hold what the next one needs; no port that it is heard at; no lock on a
// file. False also where the kernel does not tell.
bool leaves_only_memory(int pid);

}  // namespace ddprun::launcher
