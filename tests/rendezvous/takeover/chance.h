// The simulation's chance: all of a schedule follows from one number, on every machine (the
// distributions of <random> differ between libraries).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun::simulation {

class Chance {  // splitmix64
 public:
  explicit Chance(std::uint64_t seed) : state_(seed) {}

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(next() % limit); }
  bool one_in(std::size_t times) { return below(times) == 0; }

 private:
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
  }

  std::uint64_t state_;
};

}  // namespace ddprun::simulation
