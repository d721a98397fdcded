// A time as messages say it, a limit as well as what was measured: few digits, for people.
#pragma once

#include <chrono>
#include <string>

namespace ddprun::rendezvous {

// "310 ms", "1.2 s", "5 s", "600 s", "90 min", "2 h 05 min".
std::string time_text(std::chrono::milliseconds time);

}  // namespace ddprun::rendezvous
