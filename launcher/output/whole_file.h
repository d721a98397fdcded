// A file that is there whole or not at all, as that of --report.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::launcher {

// Of an option's value "-", which would make a file of that name.
inline constexpr const char* dash_is_no_file =
    "\"-\" is none: /dev/stdout is standard output, and ./- a file of that name";

// Why a file cannot be written under this path, as far as it can be known without doing so; "" =
// nothing speaks against it.
std::string why_not_writable(const std::string& path);

// Puts a file with `content` in the place of whatever file was there, in one step (temporary name,
// rename): a reader finds the old one or the new one, also when several processes write. What is no
// regular file (a pipe, a terminal) is written to. Returns what went wrong, or "".
std::string write_whole_file(const std::string& path, std::string_view content);

}  // namespace ddprun::launcher
