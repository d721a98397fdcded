// Where the nodes of the job meet, under which name, and how long they wait for each other.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/options/arguments.h"
#include "launcher/options/launch_options.h"

namespace ddprun::launcher {

// Both need the job's shape (nodes, backend, standalone, node rank) in `result`. Throw UsageExit.
void decide_endpoint(const SplitArguments& given, LaunchOptions& result);
void decide_conf(const SplitArguments& given, LaunchOptions& result);
// Where the nodes meet, after those.
void decide_etcd(const SplitArguments& given, const EnvironmentLookup& environment,
                 LaunchOptions& result);
void decide_tie_breaker(const SplitArguments& given, const EnvironmentLookup& environment,
                        LaunchOptions& result);  // After those.

// What --rdzv-conf says of heartbeats.
struct HeartbeatWords {
  std::optional<std::chrono::milliseconds> interval = {};  // keep_alive_interval
  std::optional<std::chrono::milliseconds> timeout = {};   // heartbeat_timeout
  std::optional<int> attempts = {};                        // keep_alive_max_attempt
};
struct HeartbeatPace {
  std::chrono::milliseconds interval;
  std::chrono::milliseconds timeout;
  int lost_after = 0;  // So many intervals; 0: `timeout` was not made of those.
};
// torchrun's words, with its meaning, to ours: every `interval` one, lost after `timeout`. `usual`:
// for what is not said. Pure; what comes back may make no sense, as what went in.
HeartbeatPace settle_heartbeat(const HeartbeatWords& words, const HeartbeatPace& usual);

// Whether nodes find each other in etcd: then it is etcd that listens at the endpoint, and any node
// may coordinate the job.
bool meets_in_etcd(const LaunchOptions& options);

// Free of control characters, so that it can be shown and be a part of a file name.
bool is_printable(const std::string& text);

}  // namespace ddprun::launcher
