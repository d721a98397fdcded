// Where workers say how far they are: a whole number in any unit that grows while work is done and
// kept (steps of training that a restart does not repeat), as the value of this key of the store.
// Whoever can write to the store may say it, in any language. An attempt that got further than all
// before it ends a row of failures: the next restart comes at once
// (rendezvous/job/restart_policy.h).
#pragma once

#include <string_view>

namespace ddprun::rendezvous {

inline constexpr std::string_view progress_key = "ddprun/progress";

}  // namespace ddprun::rendezvous
