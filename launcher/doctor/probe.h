// `ddprun doctor --probe`: the doctor's end on each host. It answers what it is asked
// (probe_message.h), and ends with its stdin.
#pragma once

namespace ddprun::launcher {

// Returns the exit status.
int run_probe();

}  // namespace ddprun::launcher
