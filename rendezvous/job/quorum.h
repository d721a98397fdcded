// Whether the nodes that this coordinator does not hear could have chosen another one.
//
// A coordinator that is cut off does not know whether the others are dead or only out of its sight,
// and must not let the job go on when those out of sight may: two attempts at once would write the
// same checkpoints. Agents choose with a majority of a round's council (takeover/takeover.h), so
// the coordinator ends as soon as that many are neither here nor have said goodbye.
//
// A new round has a new council. Until a majority of the one before has started it, that one could
// still choose in ignorance of the new round, and is what counts: the round is settled only then.
// A core: no sockets, threads or clock.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "rendezvous/control/council.h"

namespace ddprun::rendezvous {

class Quorum {
 public:
  void round_closed(Council council);
  // The round of another coordinator.
  void inherit(const Council& council, const Council& before) {
    council_ = council;
    before_ = before;
  }
  // This node has started the round, or cannot vote in it any more because it said goodbye or has
  // come back under another node_id. True: that settles the round.
  bool started(const std::string& node_id);
  bool resigned(const std::string& node_id);

  const Council& council() const { return council_; }
  // Of the last settled round, while this one is not; otherwise empty.
  const Council& before() const { return before_; }

  bool others_may_choose(const std::function<bool(const std::string& id)>& present) const;

 private:
  bool settles();

  Council council_;
  Council before_;
  std::set<std::string> started_;   // This round.
  std::set<std::string> resigned_;  // Ever: a node_id does not come back.
};

}  // namespace ddprun::rendezvous
