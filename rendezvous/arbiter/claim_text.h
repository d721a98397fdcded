// A claim as one line of JSON, which is also for people who look what became of their job.
// A core: no sockets, threads or clock.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/arbiter/claims.h"

namespace ddprun::rendezvous {

// "2026-11-28T14:02:11Z".
std::string claim_time(std::time_t seconds);

// `when`: for people only; clocks of two machines are never compared.
std::string claim_text(const Claim& claim, const std::string& run_id, const std::string& job,
                       RoundName round, const std::string& when);
// Nothing if it is no such line.
std::optional<Claim> parse_claim(std::string_view text);

}  // namespace ddprun::rendezvous
