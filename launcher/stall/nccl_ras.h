// NCCL's own answer to who is missing in a collective: its RAS service, which every process of NCCL
// 2.24 and later runs, knows of all ranks of the job, whichever one is asked.
//
// One question for each job, when a stall is at hand: some versions crash when they are asked while
// communicators come and go, and none is the better for being polled.
#pragma once

#include <chrono>
#include <string>

namespace ddprun::launcher {

inline constexpr const char* ras_address_variable = "NCCL_RAS_ADDR";

struct RasAnswer {
  std::string text;  // What it said, without an end of line; "" = nothing.
  std::string why;   // It did not, or broke off. "" = it said all of it.
};

// `address`: HOST:PORT, as in NCCL_RAS_ADDR. Blocks for `limit` at most.
RasAnswer ask_nccl_ras(const std::string& address, std::chrono::milliseconds limit);

}  // namespace ddprun::launcher
