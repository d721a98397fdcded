// A limit of time as messages say it: "600 s", "400 ms", "1500 ms".
#pragma once

#include <chrono>
#include <string>

namespace ddprun::rendezvous {

inline std::string time_text(std::chrono::milliseconds time) {
  const auto ms = time.count();
  return ms != 0 && ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

}  // namespace ddprun::rendezvous
