// How far apart two cores are: the time that a cache line takes from one to the other and back.
//
// On a virtual machine this changes while it runs, by 5x, when the host moves its virtual
// processors between chiplets. Whatever two processes say to each other then takes that much
// longer: a measurement of it means little without this number beside it.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

namespace ddprun::benchmarks {

// The cores that this process may run on.
inline std::vector<int> own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

// The calling thread, and the threads that it starts from now on, run on this core alone.
inline void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

// There and back between two cores, in nanoseconds. The least of some tries: whoever else wants one
// of the cores makes a try longer, never shorter.
inline double line_trip_ns(int one, int other) {
  constexpr std::uint32_t tries = 50, trips = 100;
  struct alignas(128) Line {
    std::atomic<std::uint32_t> number{0};
  };
  Line there, back;
  std::thread echo([&, other] {
    pin_to(other);
    for (std::uint32_t seen = 0; seen != tries * trips;) {
      seen = there.number.load(std::memory_order_acquire);
      back.number.store(seen, std::memory_order_release);
    }
  });
  double least_ns = std::numeric_limits<double>::max();
  std::thread([&, one] {
    pin_to(one);
    std::uint32_t trip = 0;
    for (std::uint32_t turn = 0; turn < tries; ++turn) {
      const auto start = std::chrono::steady_clock::now();
      for (std::uint32_t i = 0; i < trips; ++i) {
        there.number.store(++trip, std::memory_order_release);
        while (back.number.load(std::memory_order_acquire) != trip) continue;
      }
      const std::chrono::duration<double, std::nano> took =
          std::chrono::steady_clock::now() - start;
      least_ns = std::min(least_ns, took.count() / trips);
    }
  }).join();
  echo.join();
  return least_ns;
}

}  // namespace ddprun::benchmarks
