// Lets the launcher hear of this process's death at once (rendezvous/contract/life_page.h).
#pragma once

namespace ddprun::worker {

// Takes the lock that tells it, if the launcher has given this process memory for that. In the main
// thread, which lives as long as the process; elsewhere it does nothing. Called by
// install_error_handlers().
void hold_life_lock();

}  // namespace ddprun::worker
