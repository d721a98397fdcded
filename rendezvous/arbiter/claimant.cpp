// The one rule that keeps a job one stands in judge(): a claim is kept only on top of one's own.
#include "rendezvous/arbiter/claimant.h"

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {
namespace {

// An election raises a term by one, so that no candidate reaches one that is this far away.
constexpr int beyond_elections = 1'000;

}  // namespace

void Claimant::want(WordWish wish, Seat self, TimePoint now) {
  stale_ = under_way_.has_value();
  said_.reset();
  self_ = std::move(self);
  std::map<RoundName, OfRound> before = std::exchange(rounds_, {});
  const bool same_term = wish_ && wish_->term == wish.term;
  for (const RoundName& name : wish.rounds) {
    OfRound& round = rounds_[name];
    // Its beat must go on growing, or the claim would seem to have lapsed.
    round.beat = before[name].beat;
    round.given = same_term && before[name].given;
    round.due = now;
  }
  wish_ = std::move(wish);
}

void Claimant::drop() {
  stale_ = under_way_.has_value();
  wish_.reset();
}

std::optional<ArbiterTask> Claimant::next(TimePoint now) {
  if (!wish_ || under_way_) return {};
  const auto due = std::min_element(rounds_.begin(), rounds_.end(),
                                    [](auto& a, auto& b) { return a.second.due < b.second.due; });
  if (due == rounds_.end() || due->second.due > now) return {};
  auto& [name, round] = *due;
  ArbiterTask task{.round = name, .add = std::exchange(round.add, {}), .at = round.at};
  if (!round.kept) task.beat = ++round.beat;
  under_way_ = name;
  return task;
}

std::optional<Word> Claimant::answered(const ArbiterReply& reply, TimePoint now) {
  const std::optional<RoundName> name = std::exchange(under_way_, {});
  if (std::exchange(stale_, false) || !name) return {};
  rounds_[*name].due = now + limits_.look_again;
  if (reply.claims) return judge(*name, *reply.claims, now);
  if (said_) return {};
  said_ = Word::Kind::Unreached;
  Word unreached = word(Word::Kind::Unreached);
  unreached.why = reply.why;
  return unreached;
}

std::optional<Word> Claimant::judge(RoundName name, const Claims& claims, TimePoint now) {
  OfRound& round = rounds_[name];
  if (claims.count == 0) {
    add(round, 0, /*kept=*/false, now);
    return {};
  }
  if (claims.last.holder.node_id != self_.node_id) return judge_other(round, claims, now);
  round.kept = claims.last.kept;
  // Those who outlive this agent must know the term that they have to exceed.
  round.given = round.kept || claims.last.term == wish_->term;
  if (!round.given) {
    add(round, claims.count, /*kept=*/false, now);
  } else if (wish_->keep && !round.kept) {
    add(round, claims.count, /*kept=*/true, now);
  }
  return all_there();
}

std::optional<Word> Claimant::judge_other(OfRound& round, const Claims& claims, TimePoint now) {
  if (claims.last.kept || round.given) {
    Word refused = word(Word::Kind::Refused);
    refused.holder = claims.last.holder;
    drop();
    return refused;
  }
  if (claims.count != round.seen_count || claims.beat != round.seen_beat) {
    round.seen_count = claims.count;
    round.seen_beat = claims.beat;
    round.seen = now;
  }
  if (now < round.seen + limits_.lapse) return {};
  if (wish_->term <= claims.last.term) {
    if (!wish_->leads) {
      Word outdated = word(Word::Kind::Outdated);
      outdated.term = claims.last.term;
      drop();
      return outdated;
    }
    wish_->term = claims.last.term + beyond_elections;
    for (auto& [name, other] : rounds_) other.given = false;
  }
  add(round, claims.count, /*kept=*/false, now);
  return {};
}

void Claimant::add(OfRound& round, int at, bool kept, TimePoint now) {
  round.add = Claim{.holder = self_, .term = wish_->term, .kept = kept};
  round.at = at;
  round.due = now;
}

std::optional<Word> Claimant::all_there() {
  const bool all = std::all_of(rounds_.begin(), rounds_.end(),
                               [&](const auto& entry) { return satisfied(entry.second); });
  const Word::Kind kind = wish_->keep ? Word::Kind::Kept : Word::Kind::Given;
  if (!all || said_ == kind) return {};
  said_ = kind;
  const Word there = word(kind);
  if (wish_->keep) drop();  // It needs no beat any more.
  return there;
}

Word Claimant::word(Word::Kind kind) const {
  return {.kind = kind, .rounds = wish_->rounds, .term = wish_->term, .holder = {}, .why = {}};
}

std::optional<TimePoint> Claimant::next_tick() const {
  if (!wish_ || under_way_ || rounds_.empty()) return {};
  return std::min_element(rounds_.begin(), rounds_.end(),
                          [](auto& a, auto& b) { return a.second.due < b.second.due; })
      ->second.due;
}

}  // namespace ddprun::rendezvous
