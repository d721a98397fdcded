// What the kernel says of a process in a file of /proc, which ends with the process: also between
// opening and reading, where read() fails with ESRCH. An ifstream that is read through its buffer
// throws then, and a launcher must not end because some process did.
#pragma once

#include <string>

namespace ddprun::launcher {

// All of the file, or as much as there was; "" where there is none.
std::string read_process_file(const std::string& path);

// The same of what is open.
std::string read_to_end(int fd);

}  // namespace ddprun::launcher
