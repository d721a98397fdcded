// Whether the nodes that this coordinator does not hear could have chosen another one.
//
// A coordinator that is cut off does not know whether the others are dead or only out of its sight,
// and must not let the job go on when those out of sight may: two attempts at once would write the
// same checkpoints. Agents choose with a majority of a round's council (takeover/takeover.h), so
// the coordinator ends as soon as that many are neither here nor have said goodbye. With an arbiter
// fewer are enough; then the coordinator goes on only if the arbiter's word for that round is its
// own.
//
// A new round has a new council. Until a majority of the one before has started it, that one could
// still choose in ignorance of the new round, and is what counts: the round is settled only then.
// (With the word for the round before, which nobody else can have any more, fewer are enough.)
// A core: no sockets, threads or clock.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/control/council.h"

namespace ddprun::rendezvous {

class Quorum {
 public:
  explicit Quorum(Arbitration arbitration = Arbitration::None) : arbitration_(arbitration) {}

  void round_closed(Council council, RoundName round = {});
  // The round of another coordinator.
  void inherit(const Council& council, const Council& before, RoundName round = {},
               RoundName before_round = {}, const std::vector<std::string>& resigned = {}) {
    council_ = council;
    before_ = before;
    round_ = round;
    before_round_ = before_round;
    resigned_.insert(resigned.begin(), resigned.end());
  }
  // This node has started the round. True: that settles it.
  bool started(const std::string& node_id);
  // It cannot vote any more because it said goodbye or has come back under another node_id. True:
  // that settles the round, or whoever may take over does not know of it yet.
  bool resigned(const std::string& node_id);
  // Those with a seat in one of the councils.
  std::vector<std::string> resigned() const;

  const Council& council() const { return council_; }
  // Of the last settled round, while this one is not; otherwise empty.
  const Council& before() const { return before_; }
  RoundName round() const { return round_; }
  RoundName before_round() const { return before_round_; }

  enum class Verdict {
    Leads,      // Nobody else can have been chosen.
    NeedsWord,  // Somebody else can, if the arbiter's word for choosers() is theirs.
    MustEnd,    // Somebody else can, whatever the arbiter says.
  };
  Verdict verdict(const std::function<bool(const std::string& id)>& present) const;
  // The round whose council can choose others.
  RoundName choosers() const { return before_.empty() ? round_ : before_round_; }

  // The arbiter's word for these rounds is ours, until somebody finds us silent ...
  void word_given(const std::vector<RoundName>& rounds);
  // ... or, once we have said so before a new round, for ever. True: that settles the round.
  bool word_kept();
  // Those that are ours only until we fall silent: no round may close before they are kept.
  const std::set<RoundName>& unkept() const { return given_; }

 private:
  bool has_seat(const std::string& node_id) const;
  bool settles();
  bool ours(RoundName round) const { return given_.count(round) > 0 || kept_.count(round) > 0; }

  Arbitration arbitration_;
  Council council_;
  Council before_;
  RoundName round_;
  RoundName before_round_;
  std::set<RoundName> given_;
  std::set<RoundName> kept_;
  std::set<std::string> started_;   // This round.
  std::set<std::string> resigned_;  // Ever: a node_id does not come back.
};

}  // namespace ddprun::rendezvous
