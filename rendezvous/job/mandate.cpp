// Apart from the job, so that whoever changes what a job does after a failure need not read how it
// stays one job, and the other way round.
#include "rendezvous/job/mandate.h"

#include <algorithm>
#include <set>
#include <utility>

#include "rendezvous/time_text.h"

namespace ddprun::rendezvous {

Mandate::Mandate(Limits limits) : limits_(std::move(limits)), quorum_(limits_.arbitration) {}

void Mandate::inherit(const Inherited& inherited) {
  const Succession& last = inherited.succession;
  term_ = inherited.term;
  nodes_ = last.nodes;
  quorum_.inherit(last.council, last.before, last.round, last.before_round, last.resigned);
  quorum_.word_given(inherited.given);
}

bool Mandate::is_last_round(const RoundSeat& seat) const {
  return RoundName{seat.term, seat.attempt} == round();
}

Succession Mandate::succession(int restarts_used) const {
  return {.term = term_,
          .round = quorum_.round(),
          .nodes = nodes_,
          .restarts_used = restarts_used,
          .coordinator = limits_.coordinator,
          .council = quorum_.council(),
          .before = quorum_.before(),
          .before_round = quorum_.before_round(),
          .job = limits_.job,
          .resigned = quorum_.resigned()};
}

void Mandate::attempt_seen(int attempt) {
  // Nobody gets that far; what anybody may say must not bring the number to its end.
  constexpr int attempts_max = 1'000'000'000;
  if (attempt < attempts_max) attempt_seen_ = std::max(attempt_seen_, attempt);
}

void Mandate::round_closed(Council council, int nodes) {
  nodes_ = nodes;
  quorum_.round_closed(std::move(council), {term_, std::max(round().attempt, attempt_seen_) + 1});
}

Mandate::Ruling Mandate::after_loss(const Present& present, TimePoint now) {
  if (!limits_.may_be_taken_over) return {};
  switch (quorum_.verdict(present)) {
    case Quorum::Verdict::Leads:
      return {};
    case Quorum::Verdict::MustEnd:
      return {Ruling::Kind::GivesWay,
              "most nodes of the last round are out of this node's sight; they may go on without "
              "it, so it stops (--rdzv-conf takeover=false: node 0 alone decides)"};
    case Quorum::Verdict::NeedsWord:
      break;
  }
  // What was given and is not kept stays ours only as long as it is asked for.
  std::set<RoundName> rounds = quorum_.unkept();
  rounds.insert(quorum_.choosers());
  return ask({rounds.begin(), rounds.end()}, /*keep=*/false, now);
}

Mandate::Ruling Mandate::before_round(const Present& present, TimePoint now) {
  if (word_by_) return {.kind = Ruling::Kind::Waits};
  Ruling ruling = after_loss(present, now);
  if (ruling.kind != Ruling::Kind::Leads) return ruling;
  const std::set<RoundName>& unkept = quorum_.unkept();
  if (unkept.empty()) return {};
  return ask({unkept.begin(), unkept.end()}, /*keep=*/true, now);
}

Mandate::Ruling Mandate::ask(std::vector<RoundName> rounds, bool keep, TimePoint now) {
  if (word_by_) return {.kind = Ruling::Kind::Waits};
  word_by_ = now + limits_.word_limit;
  word_why_.clear();
  return {Ruling::Kind::Waits,
          keep ? "asking the arbiter for a new round"
               : "others could take the job over without this node: asking the arbiter who goes on",
          WordWish{.rounds = std::move(rounds), .term = term_, .leads = true, .keep = keep}};
}

bool Mandate::can_be_handed_over(const Present& votes) const {
  const auto agree = [&](const std::string& id) { return id == limits_.coordinator || votes(id); };
  const auto enough = [&](const Council& council) {
    return count_in(council, agree) >= enough_alone(council, limits_.arbitration);
  };
  return limits_.may_be_taken_over && enough(quorum_.council()) && enough(quorum_.before());
}

Mandate::Ruling Mandate::on_word(const Word& word) {
  if (word.kind == Word::Kind::Unreached) {
    word_why_ = word.why;
    return {Ruling::Kind::Waits, word.why};
  }
  word_by_.reset();
  if (word.kind != Word::Kind::Given && word.kind != Word::Kind::Kept) {
    return {Ruling::Kind::GivesWay, word.holder.host + " at " + word.holder.address +
                                        " has claimed the job, so this node stops"};
  }
  term_ = word.term;
  quorum_.word_given(word.rounds);
  return {.settled = word.kind == Word::Kind::Kept && quorum_.word_kept()};
}

Mandate::Ruling Mandate::on_tick(TimePoint now) const {
  if (!word_by_) return {};
  if (now < *word_by_) return {.kind = Ruling::Kind::Waits};
  return {Ruling::Kind::Ends, word_why_.empty()
                                  ? "another node has claimed the job, and has not said within " +
                                        time_text(limits_.word_limit) + " whether it goes on"
                                  : word_why_};
}

}  // namespace ddprun::rendezvous
