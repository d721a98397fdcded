// What the ranks of one node need of a step, as that node tells it to the one that compares all.
//
// A core: values in, text out. What is read came from another machine: numbers are bounded, and
// ranks that the job does not have are passed over.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/stall/straggler_watch.h"
#include "launcher/status/job_snapshot.h"

namespace ddprun::launcher {

struct NodePaces {
  int node = 0;
  std::string host;
  // One of its ranks stands, or does something else for a while, and then no rank has a pace.
  bool stands = false;
  std::vector<RankPace> ranks;

  // A rank that trains, if it says how long its steps are.
  void add(int rank, const RankProgress& progress);
};

// One line, without its end; `node` and `host` are not in it, whoever asks knows them.
std::string paces_to_json(const NodePaces& paces);
// Nothing when it is no such object. `world_size`: ranks are below it.
std::optional<NodePaces> parse_paces(std::string_view text, int node, const std::string& host,
                                     int world_size);

// Of all ranks; none while those of some node stand.
std::vector<RankPace> paces_of(const std::vector<NodePaces>& nodes);

}  // namespace ddprun::launcher
