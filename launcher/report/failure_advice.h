// One line of advice for causes that are known and have a known way out.
//
// A core: values in, text out.
#pragma once

#include <string>

#include "rendezvous/control/first_cause.h"

namespace ddprun::launcher {

// What to do about this failure, or "". Reads how the worker ended, its message, and the last lines
// of its stderr. Words count only where the failure itself is told: source lines that a traceback
// quotes do not, nor, when the worker left a message, an older warning on stderr that other
// programs print too.
std::string advice_for(const rendezvous::FirstCause& cause);

}  // namespace ddprun::launcher
