// The rank that fails first says so before its peers can notice: to the launcher, through the error
// file, and then to the peers, whose blocked calls end with the reason.
//
//   declare_failure: error file written -> abort(reason) to the peers -> they fail, and say why
//   without it:      the exception closes the communicator -> a peer fails of that, and may write
//   its
//                    error file, or even end, before this rank has caught the exception
#pragma once

#include <string>

#include "worker/communicator.h"

namespace ddprun::worker {

// Call it where `communicator` still lives: in a catch around everything that uses it, not in one
// around its scope. `communicator` may be null, where the peers were not met yet. `what` is what
// record_error() gets, so install_error_handlers() comes first; what the peers add to the call that
// fails is "rank 2 failed: <what>". The communicator cannot be used afterwards.
void declare_failure(Communicator* communicator, const std::string& what) noexcept;

// What communicators tell their peers when an exception destroys them and nobody declared it; after
// "rank 2". They cannot know more: C++ shows an exception only to those who catch it.
inline constexpr const char* failure_without_words =
    " failed: an exception ended it, and closed its communicator (its own output says which)";

// The same where an exception has destroyed a wrapped module in the middle of a step, and nobody
// has declared it since.
inline constexpr const char* backward_without_words =
    " failed: an exception ended its step, and was not declared (its own output may say which)";

}  // namespace ddprun::worker
