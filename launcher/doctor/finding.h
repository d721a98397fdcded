// What the doctor says about one thing. A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

struct Finding {
  enum class Level { Green, Amber, Red };
  Level level = Level::Green;
  std::string where;   // "host-a", "host-a -> host-b", "all hosts"
  std::string what;    // "/dev/shm"
  std::string value;   // "64 MiB, 1 MiB free"
  std::string reason;  // Why that matters; "" for green.
  std::string remedy;  // What to do; "" for green.
  // Numbers of the hosts that cannot take part for it, if it is red: of a pair either will do.
  std::vector<int> hosts;
};

using Findings = std::vector<Finding>;

inline Finding::Level worst_of(const Findings& findings) {
  Finding::Level worst = Finding::Level::Green;
  for (const Finding& finding : findings) {
    if (finding.level > worst) worst = finding.level;
  }
  return worst;
}

}  // namespace ddprun::launcher
