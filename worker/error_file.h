// Leaves the cause of this process's death where the launcher finds it: TORCHELASTIC_ERROR_FILE,
// in the format that torch's error handler writes, with two keys more:
//
//   {"message": {"message": "<type>: <what>", "extraInfo": {"py_callstack": "...",
//                                                           "timestamp": "<unix seconds>",
//                                                           "timestamp_ns": <the same, exactly>,
//                                                           "usage_error": true}}}
//
// "usage_error" is left out where it is false. The file appears whole or not at all (temporary
// name, rename). The first cause wins: what follows it in the same process is a consequence. Of a
// child that the process forks nothing is recorded, as the process may well do without it.
// Source: torch.distributed.elastic, ErrorHandler.
#pragma once

#include <string>

#include "worker/worker_env.h"

namespace ddprun::worker {

// Writes the cause; does nothing when no error file is wanted or one was written before. Never
// throws; false if the file could not be written, now or for the first cause, and before
// install_error_handlers(), which says where it lies. Safe from any thread.
bool record_error(const std::string& message) noexcept;

// The same with the calling thread's stack, for an error that is about to be thrown: who catches it
// no longer knows where it came from.
bool record_error_with_stack(const std::string& message) noexcept;

// The same for what the user gave wrong: options, or files that they name, as every attempt of the
// same command would meet it again. When the process then ends with status 2 in a job's first
// attempt, ddprun starts no other one, whatever --max-restarts is. Not for what may be otherwise a
// moment later, as a folder that another process has locked.
bool record_usage_error(const std::string& message) noexcept;

// For a worker that goes on in another attempt, as Membership::next_rank() calls it: what it dies
// of from now on is written to the file that TORCHELASTIC_ERROR_FILE names, and nothing of before
// was. From one thread; others may fail meanwhile. Does nothing before install_error_handlers().
void follow_error_file();

// From now on an uncaught exception (std::terminate) and a fatal signal (SIGSEGV, SIGBUS, SIGFPE,
// SIGILL, SIGABRT) are recorded too, with the stack, which also goes to stderr; the process then
// dies of them as before. Call once, in main, before threads are started. The stack begins with the
// function that failed; its lines are "program(function+offset)[address]". Programs that link this
// library through CMake export their functions' names (-rdynamic), and ddprun's failure report
// makes these readable; for static functions the line is "program(+offset)", which addr2line reads.
void install_error_handlers(const WorkerEnv& env);

}  // namespace ddprun::worker
