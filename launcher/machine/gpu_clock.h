// What keeps a GPU below its clock, as NVIDIA's driver tells it.
//
// A core. Source of the reasons: nvmlClocksEventReasons of NVML's reference.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::launcher {

enum class Slowdown {
  Unknown,
  None,
  PowerLimit,  // Its own; usual at full load.
  Heat,
  PowerBrake,  // The machine's power supply asks for it.
  Hardware,    // One of the two above, or too much current: the driver does not say.
};

struct GpuClock {
  Slowdown slowdown = Slowdown::Unknown;
  int mhz = -1;  // Of its multiprocessors; -1, here and below: unknown.
  int max_mhz = -1;
  int celsius = -1;
};

// Of the driver's reasons the one that a person would look for first.
Slowdown slowdown_of(std::uint64_t reasons);

const char* name_of(Slowdown slowdown);  // "heat"; "" of Unknown.
Slowdown slowdown_named(const std::string& name);

// More than the power limit keeps it below its clock.
bool is_slowed(const GpuClock& clock);
// By what, with the figures that are known: "by heat: 780 of 1980 MHz, 92 C"; "": by nothing, or it
// is not known.
std::string slowdown_text(const GpuClock& clock);

}  // namespace ddprun::launcher
