// What options and round alone decide of an attempt's workers: for the attempt, and for --dry-run,
// which tells of it and has none.
//
// A core: values in, values out.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/options/launch_options.h"
#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {

// Whatever ends this one: a failure, or that nodes come and go.
bool another_may_follow(const LaunchOptions& options, const rendezvous::RoundStart& round);

// Whether the job begins another attempt should a worker of this one fail.
bool restart_left(const rendezvous::RoundStart& round);

// How long a worker that has lost a peer waits for word of it.
std::chrono::milliseconds peer_word_limit(const LaunchOptions& options);

// Where rank 0 of the workers opens a store of its own; nothing: all use the launcher's.
std::optional<std::string> own_store_host(const LaunchOptions& options,
                                          const rendezvous::RoundStart& round);

// Whether NCCL's RAS service is to be asked about a stall, where workers have GPUs.
bool asks_nccl_ras(const LaunchOptions& options, const EnvironmentLookup& environment);

// Whether workers get an address of ours for it: not beside the user's own, and without a GPU
// nobody would listen. `gpus`: of this machine, for these workers.
bool gives_ras_address(const LaunchOptions& options, const EnvironmentLookup& environment,
                       int gpus);

// Of this node, in this round.
int workers_here(const LaunchOptions& options, const rendezvous::RoundStart& round);

}  // namespace ddprun::launcher
