// One line of advice for causes that are known and have a known way out.
//
// A core: values in, text out.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/control/first_cause.h"

namespace ddprun::launcher {

// What to do about this failure, or "". Reads how the worker ended, its message, and the last lines
// of its stderr. Words count only where the failure itself is told: source lines that a traceback
// quotes do not, nor, when the worker left a message, an older warning on stderr that other
// programs print too.
std::string advice_for(const rendezvous::FirstCause& cause);

// Whether a worker says that another rank failed or closed their connection, rather than naming an
// error of its own.
bool names_a_lost_peer(std::string_view message);

// The same of a worker that ended by itself and left no message, as a program does that prints what
// it has caught and returns 1: whether the last lines of its stderr name that and no other cause.
bool last_words_name_a_lost_peer(std::string_view last_stderr);

// Whether all that a worker says of its failure is that it waited for a peer in vain.
bool tells_of_a_late_peer(const rendezvous::FirstCause& cause);

}  // namespace ddprun::launcher
