// Jobs that run until their test has seen enough.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"

namespace ddprun::testing {

// Commands of a worker that says `words`, in which the shell fills in variables, and then runs
// until SIGUSR1, with which it ends well. ddprun passes that on where --forward-signals names it.
inline std::string until_usr1(const std::string& words) {
  return "trap 'exit 0' USR1; echo \"" + words + "\"; while :; do sleep 0.02; done";
}

// Ends the nodes of such a job.
inline void finish(const std::vector<Process*>& nodes) {
  for (Process* node : nodes) node->send_signal(SIGUSR1);
  for (Process* node : nodes) {
    const auto ended = node->wait(60s);
    INFO(ended.output);
    CHECK(ended.status == 0);
  }
}

}  // namespace ddprun::testing
