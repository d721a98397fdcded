// Where the processes of one worker are just now, as far as they or the kernel tell.
#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

// Of this worker and all processes below it. `own_stack`: what its library has answered, or "".
// Python is looked into by py-spy where it is on PATH, for 10 s a process at most; of everything
// else the kernel tells what its threads wait for.
std::vector<std::string> rank_stack_lines(int pid, const std::string& own_stack);

// These lines say that Python's main thread is in a collective of torch.distributed.
bool is_in_collective(const std::vector<std::string>& lines);

}  // namespace ddprun::launcher
