// Which file a program's name means on this machine.
#pragma once

#include <optional>
#include <string>

namespace ddprun::launcher {

// Where programs are looked for. `path`: PATH; where there is none, as execvp(3) and Python do.
std::string search_path(const std::optional<std::string>& path);

// The file that execve would be given for `name`: itself when it has a '/', otherwise found on
// `search_path`; "" when there is none, with `error_number` set.
std::string find_program(const std::string& name, const std::string& search_path,
                         int& error_number);

}  // namespace ddprun::launcher
