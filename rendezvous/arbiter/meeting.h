// How nodes that know nothing but an etcd find their job's coordinator: one key names it, for as
// long as it says that it lives.
//
//   /ddprun/<run id>/leader   a claim (claims.h) as one line of JSON, with the coordinator's lease
//
// Who puts the key where there is none coordinates the job, and puts its port there once it listens
// (0 until then). After a takeover the new coordinator replaces the key by its own, which has the
// later term. So losing the lease costs a coordinator nothing but that newcomers do not find it for
// as long, and a job whose nodes hear each other runs on while etcd is away.
// A core: no sockets, threads or clock.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/arbiter/claims.h"

namespace ddprun::rendezvous {

struct Leader {
  Seat seat;
  int term = 0;

  friend bool operator==(const Leader&, const Leader&) = default;
};

// What a node does that seeks the job.
enum class Meeting {
  Follow,    // The one that is named. Should it not answer, its lease ends or another replaces it.
  Lead,      // Put the key, if there is still none.
  LookAgain  // Later.
};

// `is_new`: one that was in a round must not begin a job of its own, since the others may only be
// out of its sight. That it is named itself a node may not know: the answer to a request may be
// lost.
Meeting decide_meeting(const std::optional<Leader>& named, const std::string& node_id, bool is_new);

// A coordinator that looks after its key.
enum class Upkeep {
  Nothing,  // It is there.
  Put,      // There is none.
  Replace,  // It is an earlier one's, or says something else of this one.
  GiveWay,  // It is that of a coordinator that was elected since, or has begun the job anew.
};

Upkeep decide_upkeep(const std::optional<Leader>& named, const Leader& self);

}  // namespace ddprun::rendezvous
