// What tells an attempt of a job from every other one. Its number alone does not: a coordinator
// that was replaced while nobody heard it may have begun an attempt of the number that its
// successor begins in a later term.
//
// A core: no sockets, threads or clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::rendezvous {

// In what ranks send each other. Of two attempts of a job the later one has the greater epoch.
using Epoch = std::uint64_t;

constexpr Epoch epoch_of(int term, int attempt) {
  return Epoch{static_cast<std::uint32_t>(term)} << 32 | static_cast<std::uint32_t>(attempt);
}

// "attempt 3 of term 0"
inline std::string epoch_text(Epoch epoch) {
  return "attempt " + std::to_string(static_cast<std::uint32_t>(epoch)) + " of term " +
         std::to_string(epoch >> 32);
}

// In keys of the store, and for the store to tell late clients by: "0.3"; "3" where no term is
// known, since neither torchrun nor a ddprun from before there were terms says one.
inline std::string attempt_name(std::optional<int> term, int attempt) {
  const std::string number = std::to_string(attempt);
  return term ? std::to_string(*term) + "." + number : number;
}

}  // namespace ddprun::rendezvous
