// A session of ssh without a terminal, for tests in which it is lost. A shell plays sshd: it holds
// the other ends of the launcher's stdin, stdout and stderr, and is killed.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/end_to_end/ddprun_process.h"

namespace ddprun::testing {

// Starts `job` as sshd does; says "launcher PID." once its worker is up, and waits.
inline std::vector<std::string> session_of(const std::vector<std::string>& job) {
  std::vector<std::string> argv = {
      "/bin/bash", "-c",
      "coproc exec \"$@\" 2>&1\n"
      "until read -r line <&${COPROC[0]} && [[ $line = *up* ]]; do :; done\n"
      "echo \"launcher $COPROC_PID.\"\n"
      "wait $COPROC_PID",
      "session"};
  return argv + job;
}

inline nlohmann::json report_in(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

}  // namespace ddprun::testing
