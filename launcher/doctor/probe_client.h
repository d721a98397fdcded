// Connects to another host's probe, and measures the way there.
#pragma once

#include "launcher/doctor/machine_facts.h"
#include "launcher/doctor/probe_message.h"

namespace ddprun::launcher {

// What both ends of a connection between probes agree on: a greeting with the token of the one that
// listens, small messages that come back, large ones of which the end comes back.
namespace probe_talk {
constexpr std::size_t token_bytes_max = 64;
constexpr char accepted = 'd';      // After the greeting, a line "ddprun-doctor TOKEN".
constexpr std::size_t echoes = 16;  // Of one byte.
constexpr std::size_t large_bytes = 256 << 10;
constexpr char large_arrived = 'L';
constexpr char all_arrived = 'E';  // After the other end has been shut.
}  // namespace probe_talk

// Watches `owner_fd` meanwhile: its end is that of the process.
PairFacts measure_way(const ProbeAsk& ask, int owner_fd);

}  // namespace ddprun::launcher
