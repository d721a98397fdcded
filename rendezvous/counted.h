// A number of things in words: "1 worker", "2 workers", "3 classes".
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::rendezvous {

// `more`: the plural, where it is not one "s" more.
inline std::string counted(std::int64_t count, const std::string& one,
                           const std::string& more = "") {
  if (count == 1) return "1 " + one;
  return std::to_string(count) + " " + (more.empty() ? one + "s" : more);
}

}  // namespace ddprun::rendezvous
