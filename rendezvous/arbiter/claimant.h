// Gets the arbiter's word for an agent: what to ask next, and when, and what the answers mean.
//
// One task is under way at a time; the shell carries it out and says answered(). A claim that is
// not kept needs a beat every `look_again`; one of somebody else lapses when its beat has not
// changed for `lapse`, on this agent's clock alone. A core: no sockets, threads or clock.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "rendezvous/arbiter/claims.h"
#include "rendezvous/control/liveness.h"
#include "rendezvous/control/word.h"

namespace ddprun::rendezvous {

struct ClaimLimits {
  Milliseconds look_again{1'000};
  // Many beats: a claim that lapses too early costs its holder the job.
  Milliseconds lapse{10'000};
};

class Claimant {
 public:
  explicit Claimant(const ClaimLimits& limits) : limits_(limits) {}

  // Replaces the last wish, of which nothing more is heard. `self`: as the others know this agent.
  void want(WordWish wish, Seat self, TimePoint now);
  // Nothing is wanted any more: what was given lapses.
  void drop();

  // The task that is due; none while one is under way.
  std::optional<ArbiterTask> next(TimePoint now);
  // What came of it. Something only if that is news.
  std::optional<Word> answered(const ArbiterReply& reply, TimePoint now);
  std::optional<TimePoint> next_tick() const;

 private:
  struct OfRound {
    bool given = false, kept = false;
    std::uint64_t beat = 0;    // This agent's.
    std::optional<Claim> add;  // To be tried next ...
    int at = 0;                // ... as this number.
    int seen_count = -1;       // Another one's claim ...
    std::optional<std::uint64_t> seen_beat;
    TimePoint seen;  // ... since when it is as it is.
    TimePoint due;
  };

  bool satisfied(const OfRound& round) const { return wish_->keep ? round.kept : round.given; }
  std::optional<Word> judge(RoundName name, const Claims& claims, TimePoint now);
  std::optional<Word> judge_other(OfRound& round, const Claims& claims, TimePoint now);
  void add(OfRound& round, int at, bool kept, TimePoint now);
  std::optional<Word> all_there();
  Word word(Word::Kind kind) const;

  ClaimLimits limits_;
  std::optional<WordWish> wish_;
  Seat self_;
  std::map<RoundName, OfRound> rounds_;
  std::optional<RoundName> under_way_;
  bool stale_ = false;  // What is under way was of an earlier wish.
  std::optional<Word::Kind> said_;
};

}  // namespace ddprun::rendezvous
