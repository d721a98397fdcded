// What killed a worker, in its own words: found in the end of its stderr when it left no error
// file.
//
// A core: text in, text out.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::launcher {

// Knows
//   - a Python traceback, also with torch's "[rank0]: " before each line, with those it is chained
//     to, and with what a data loader or a spawned process puts into it;
//   - a Python that died of a signal under faulthandler;
//   - an uncaught C++ exception (libstdc++, libc++), a failed assert, a fatal message of glog or
//     Abseil, what the C library says before it aborts, a Rust panic.
// The result's first lines are the exception, then comes the traceback: the order of torch's error
// files. At most 2000 bytes; of a longer one the middle is left out. "" when nothing is recognised.
//
// `exit_code` and `signal` are how the worker ended: a traceback that a program has survived and
// printed as a warning is not what a signal killed it for, be it below a shell.
std::string message_from_stderr(std::string_view tail, int exit_code, int signal);

// The traceback that a worker which has not ended wrote last, if it is of an end.
struct LastException {
  std::string message;    // As that of message_from_stderr(); "" = none.
  bool uncaught = false;  // For certain. Else nothing follows it, and it may have been survived.
};
LastException last_exception_of(int rank, std::string_view tail);

// What a worker that has not ended says of its end: the traceback of an exception that nobody has
// caught, by the rank that torch puts before it; "" if there is none. Its process may be held up by
// a thread, or by a child that it waits for.
std::string uncaught_exception_of(int rank, std::string_view tail);

// Stands for the lines that without_middle() has left out.
constexpr std::string_view left_out = "  [...]";

// `text` with its middle left out where it is longer than `bytes_max`, cut between lines where that
// is possible.
std::string without_middle(std::string_view text, std::size_t bytes_max);

}  // namespace ddprun::launcher
