// Names and words of the reasons.
#include "launcher/machine/gpu_clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace ddprun::launcher {
namespace {

// Bits of nvmlClocksEventReasons. An idle GPU and clocks that somebody has set are no slowdown.
constexpr std::uint64_t power_cap = 0x4, hardware = 0x8, heat = 0x20 | 0x40, power_brake = 0x80;

constexpr const char* names[] = {"", "none", "power limit", "heat", "power brake", "hardware"};

// What it is slowed down by.
const char* cause(Slowdown slowdown) {
  switch (slowdown) {
    case Slowdown::PowerLimit:
      return "its power limit";
    case Slowdown::PowerBrake:
      return "the power brake";
    case Slowdown::Hardware:
      return "its hardware";
    default:
      return name_of(slowdown);
  }
}

}  // namespace

Slowdown slowdown_of(std::uint64_t reasons) {
  if ((reasons & heat) != 0) return Slowdown::Heat;
  if ((reasons & power_brake) != 0) return Slowdown::PowerBrake;
  if ((reasons & hardware) != 0) return Slowdown::Hardware;
  return (reasons & power_cap) != 0 ? Slowdown::PowerLimit : Slowdown::None;
}

const char* name_of(Slowdown slowdown) { return names[static_cast<int>(slowdown)]; }

Slowdown slowdown_named(const std::string& name) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  return found == std::end(names) ? Slowdown::Unknown
                                  : static_cast<Slowdown>(found - std::begin(names));
}

bool is_slowed(const GpuClock& clock) {
  return clock.slowdown == Slowdown::Heat || clock.slowdown == Slowdown::PowerBrake ||
         clock.slowdown == Slowdown::Hardware;
}

std::string slowdown_text(const GpuClock& clock) {
  if (!is_slowed(clock) && clock.slowdown != Slowdown::PowerLimit) return "";
  std::string text = std::string("by ") + cause(clock.slowdown);
  const char* join = ": ";
  if (clock.mhz >= 0 && clock.max_mhz > 0) {
    text += fmt::format("{}{} of {} MHz", join, clock.mhz, clock.max_mhz);
    join = ", ";
  }
  return clock.celsius < 0 ? text : fmt::format("{}{}{} C", text, join, clock.celsius);
}

}  // namespace ddprun::launcher
