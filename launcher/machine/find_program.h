// Which file a program's name means on this machine.
#pragma once

#include <string>

namespace ddprun::launcher {

// The file that execve would be given for `name`: itself when it has a '/', otherwise found on
// `search_path` (the value of PATH); "" when there is none, with `error_number` set.
std::string find_program(const std::string& name, const std::string& search_path,
                         int& error_number);

}  // namespace ddprun::launcher
