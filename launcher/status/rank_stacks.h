// Where the processes of workers are just now, as far as they or the kernel tell.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ddprun::launcher {

struct AskedWorker {
  int pid = 0;
  std::string own_stack;  // What its library has answered, or "".
};

// Of each of these workers, in their order, with all processes below it. Python is looked into by
// py-spy where it is on PATH, a few processes at a time, the workers first, and all together within
// `limit`. Of everything else, and where py-spy comes too late, the kernel tells what threads wait
// for. Whoever else asks in this process waits for py-spy until then, since two of them would keep
// each other from looking.
std::vector<std::vector<std::string>> worker_stack_lines(const std::vector<AskedWorker>& workers,
                                                         std::chrono::milliseconds limit);

// Whether any thread of this process, or of one below it, is in an uninterruptible sleep just now:
// it waits for a disk, a file server or a driver, and SIGKILL would wait with it.
bool waits_in_kernel(int pid);

// These lines say that Python's main thread is in a collective of torch.distributed.
bool is_in_collective(const std::vector<std::string>& lines);

}  // namespace ddprun::launcher
