// Lets whoever watches the job ask where this process is (ddprun stacks).
#pragma once

namespace ddprun::worker {

// Has a real-time signal answered with the main thread's stack, if the launcher has given this
// process memory for it and nobody handles that signal. Calls that the signal interrupts are begun
// again by the kernel, as far as it does that for any signal. Called by install_error_handlers();
// a second time by ProgressPage::follow_rank(), for its new place.
void answer_for_stacks();

// This process's part of what its launcher shares with it, progress_page_stride bytes; null: it has
// none. From the second attempt on that of its rank then (ProgressPage::follow_rank()).
void* memory_of_launcher();

}  // namespace ddprun::worker
