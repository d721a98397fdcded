// What a process has said that it does with a signal, as /proc tells.
#pragma once

namespace ddprun::launcher {

// Whether it has a handler.
bool handles_signal(int pid, int signal);

// Whether it handles, ignores or blocks it. Any other process would end by most signals: one that
// has just begun and means to handle it, too. True also where nothing can be known.
bool has_answer_to_signal(int pid, int signal);

}  // namespace ddprun::launcher
