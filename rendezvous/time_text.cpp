// How many digits of a time are worth reading.
#include "rendezvous/time_text.h"

#include <algorithm>
#include <cstdint>

namespace ddprun::rendezvous {

std::string time_text(std::chrono::milliseconds time) {
  const std::int64_t ms = std::max<std::int64_t>(time.count(), 0);
  if (ms < 1'000) return std::to_string(ms) + " ms";
  const std::int64_t s = ms / 1'000, tenths = ms / 100 % 10;
  if (s < 10 && tenths != 0) return std::to_string(s) + "." + std::to_string(tenths) + " s";
  // Ten minutes are still seconds: the usual time-outs are, and options take them as seconds.
  if (s <= 600) return std::to_string(s) + " s";
  const std::int64_t min = s / 60;
  if (min < 120) return std::to_string(min) + " min";
  return std::to_string(min / 60) + " h " + (min % 60 < 10 ? "0" : "") + std::to_string(min % 60) +
         " min";
}

}  // namespace ddprun::rendezvous
