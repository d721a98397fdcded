// How long a test waits for what ought to happen. A limit is there so that a hang becomes a
// failure; it says nothing about speed. So it is written for an idle machine, in one place
// stretched by how busy this one is, and costs nothing where all goes well.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace ddprun::testing {

// By how much things may take longer than on an idle machine; at least 1. DDPRUN_TEST_SLOW adds to
// what is seen: a factor of its own for machines whose load does not show (emulators, throttled
// ones).
inline double slowness() {
  double load = 0;
  std::string ignored, running = "0/0";
  // The average lags a minute behind, the number of runnable tasks is a moment's; the greater
  // counts.
  std::ifstream("/proc/loadavg") >> load >> ignored >> ignored >> running;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const double waiting = std::max(load, std::strtod(running.c_str(), nullptr)) / cores;
  const char* asked = std::getenv("DDPRUN_TEST_SLOW");
  double factor = std::clamp(1 + waiting, 1.0, 20.0) *
                  std::clamp(asked ? std::strtod(asked, nullptr) : 1.0, 1.0, 100.0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  factor *= 3;  // What the checks themselves cost, measured between 2 and 3.
#endif
  return factor;
}

// `limit`, which is enough on an idle machine, for this one.
template <class Duration>
std::chrono::milliseconds patience(Duration limit) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(
      slowness() * std::chrono::duration<double, std::milli>(limit).count()));
}

// The same in whole seconds, for programs' options.
inline std::string patience_seconds(int seconds) {
  return std::to_string(static_cast<int>(seconds * slowness() + 0.5));
}

}  // namespace ddprun::testing
