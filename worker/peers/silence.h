// What became of a peer whose host has fallen silent, from whom the other ranks still hear. A cut
// between two hosts looks to both as if the other one were gone; only the others know better:
//
//   rank 0 --x-- rank 1        rank 0 asks rank 2: "whom do you hear?"
//        \       /             {0, 1}: the link between 0 and 1 is cut
//         rank 2               {0}:    rank 1's host is gone, or its network
//
// A core: a decision without sockets, threads or clock.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "worker/peers/blame.h"

namespace ddprun::worker {

struct Silence {
  enum class Kind {
    LinkCut,   // `witnesses` hear both ends.
    PeerGone,  // Nobody who answered hears the peer.
    SelfLost,  // Nobody answered: this rank's own network is the likelier end.
    Unknown,   // There is nobody else to ask.
  };
  Kind kind = Kind::Unknown;
  RankSet witnesses;
};

// `peer` is silent for `rank`. Element r of `heard`: whom rank r hears; nothing: it gave no answer.
Silence judge_silence(int rank, int peer, const std::vector<std::optional<RankSet>>& heard);

// The verdict in words, the same at both ends of a link that is cut. names[r] is rank r's, as "rank
// 1 (pid 4127 on 10.0.0.2)"; `after` is how long nothing came, as "5 s".
std::string to_string(const Silence& silence, int rank, int peer,
                      const std::vector<std::string>& names, const std::string& after);

}  // namespace ddprun::worker
