// What wait(2) tells of a process. A core: plain values.
#pragma once

namespace ddprun::launcher {

struct ExitStatus {
  int exit_code = 0;  // Meaningful when signal == 0.
  int signal = 0;     // The signal that ended it, or 0.
  bool core_dumped = false;
};

}  // namespace ddprun::launcher
