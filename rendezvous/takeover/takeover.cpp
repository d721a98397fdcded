// The election's rules, each beside the reason why two agents cannot both pass it.
#include "rendezvous/takeover/takeover.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "rendezvous/time_text.h"

namespace ddprun::rendezvous {
namespace {

constexpr int pause_doublings = 3;

}  // namespace

void Takeover::leads() {
  assert(state_ == State::Following && last_.round.attempt < 0);
  state_ = State::Leading;
  coordinator_.node_id = self_;
}

void Takeover::heard(const Succession& succession) {
  hear_term(succession.term);
  last_ = succession;
  if (state_ == State::Leading) return;
  state_ = State::Following;
  const auto has_id = [&](const Seat& seat) { return seat.node_id == succession.coordinator; };
  const auto seat = std::find_if(last_.council.begin(), last_.council.end(), has_id);
  coordinator_ = seat == last_.council.end() ? Seat{.node_id = succession.coordinator} : *seat;
}

TakeoverActions Takeover::coordinator_lost(TimePoint now) {
  it_votes_ = false;
  return seek(now);
}

// Nobody waits for a time-out, and half of the nodes are enough with the leaving one's vote.
TakeoverActions Takeover::coordinator_hands_over(TimePoint now) {
  it_votes_ = true;
  return seek(now);
}

TakeoverActions Takeover::seek(TimePoint now) {
  if (state_ == State::Leading || state_ == State::Over) return {};
  if (last_.round.attempt < 0) return give_up("there was no round yet");
  state_ = State::Seeking;
  lost_at_ = now;
  standing_ = false;
  for_us_.clear();
  pause_ = limits_.repeat;
  asks_ = 0;
  asks_arbiter_ = false;
  arbiter_why_.clear();
  if (!can_win()) {
    return give_up(fmt::format(
        "without it there is no majority of the {} nodes of the last round, so none can take over "
        "(of three nodes two could; with --tie-breaker half are enough)",
        last_.council.size()));
  }
  try_at_ = now + own_place().value_or(0) * limits_.stagger;
  return on_tick(now);
}

// A vote is for one candidate a term, so that two of a term cannot both have a majority; and for
// none that knows less than the voter, since what the voter knows may have been settled.
Vote Takeover::on_ask(const AskVote& ask, TimePoint now) {
  if (ask.run_id != run_id_ || ask.to != self_)
    return {.term = 0, .granted = false, .coordinator = {}};
  if (state_ == State::Following || state_ == State::Leading) {
    return {.term = term_, .granted = false, .coordinator = coordinator_};
  }
  Vote vote{.term = term_, .granted = false, .coordinator = {}};
  if (waits_for_word()) return vote;
  if (state_ == State::Over || ask.candidate.empty() || ask.term < term_) return vote;
  hear_term(ask.term);
  vote.term = term_;
  if (is_older(ask)) return vote;
  if (!voted_for_.empty() && voted_for_ != ask.candidate) return vote;
  voted_for_ = ask.candidate;
  vote.granted = true;
  // The candidate gets the time to win and to say so.
  try_at_ = now + patience();
  return vote;
}

TakeoverActions Takeover::on_vote(const std::string& from, const Vote& vote, TimePoint now) {
  if (state_ != State::Seeking) return {};
  const Seat& leader = vote.coordinator;
  const bool another = !leader.address.empty() && leader.node_id != coordinator_.node_id;
  if (another && leader.node_id != self_ && vote.term >= last_.term) {
    state_ = State::Following;
    coordinator_ = leader;
    standing_ = false;
    TakeoverActions actions;
    stop_asking(actions);
    actions.push_back(Follow{leader});
    return actions;
  }
  const bool same = !leader.node_id.empty() && leader.node_id == coordinator_.node_id;
  if (same && now >= lost_at_ + limits_.all_notice) {
    return give_up("the other nodes still hear it", /*still_there=*/true);
  }
  if (vote.term > term_) {
    if (!waits_for_word()) hear_term(vote.term);
    return {};
  }
  if (!vote.granted || !standing_ || vote.term != term_) return {};
  for_us_.insert(from);
  return count_votes(now);
}

// Of a round that needs no word more than half agree. The one before comes first: its council alone
// counts for who knows nothing of the last one.
TakeoverActions Takeover::count_votes(TimePoint now) {
  const auto agrees = [&](const std::string& id) { return for_us_.count(id) > 0; };
  WordWish wish{.rounds = {}, .term = term_};
  for (const auto& [council, name] :
       {std::pair(&last_.before, last_.before_round), std::pair(&last_.council, last_.round)}) {
    const std::size_t votes = count_in(*council, agrees);
    if (votes < enough_with_word(*council, arbitration())) return {};
    if (votes < enough_alone(*council, arbitration())) wish.rounds.push_back(name);
  }
  if (wish.rounds.empty()) return lead({});
  if (waits_for_word() || now < lost_at_ + limits_.ask_arbiter_after) return {};
  asks_arbiter_ = true;
  return {AskArbiter{std::move(wish)}};
}

TakeoverActions Takeover::on_word(const Word& word, TimePoint now) {
  if (!waits_for_word()) return {};
  switch (word.kind) {
    case Word::Kind::Given:
    case Word::Kind::Kept:
      return lead(word.rounds);
    case Word::Kind::Refused:
      return give_up(
          fmt::format("{} at {} has claimed the job", word.holder.host, word.holder.address),
          /*still_there=*/true, word.holder);
    case Word::Kind::Outdated:
      asks_arbiter_ = false;
      hear_term(word.term);
      return stand(now);
    case Word::Kind::Unreached:
      arbiter_why_ = word.why;
      return {};
  }
  return {};
}

TakeoverActions Takeover::lead(std::vector<RoundName> given) {
  const auto own = [&](const Seat& seat) { return seat.node_id == self_; };
  const auto seat = std::find_if(last_.council.begin(), last_.council.end(), own);
  assert(seat != last_.council.end());  // Or it would not have stood.
  state_ = State::Leading;
  coordinator_ = *seat;
  TakeoverActions actions;
  if (given.empty()) stop_asking(actions);
  actions.push_back(Lead{term_, std::move(given)});
  return actions;
}

void Takeover::stop_asking(TakeoverActions& actions) {
  if (!std::exchange(asks_arbiter_, false)) return;
  actions.push_back(StopAsking{});
}

// Whoever has claimed the job before may have to be silent for a while.
TimePoint Takeover::gives_up_at() const {
  return lost_at_ + (asks_arbiter_ ? limits_.arbiter_give_up : limits_.give_up);
}

TakeoverActions Takeover::on_tick(TimePoint now) {
  if (state_ != State::Seeking) return {};
  if (now >= gives_up_at()) {
    if (!arbiter_why_.empty()) return give_up(arbiter_why_);
    return give_up(fmt::format("no majority of the {} nodes of the last round was heard within {}",
                               last_.council.size(), time_text(limits_.give_up)));
  }
  if (own_place() && now >= try_at_ && !waits_for_word()) return stand(now);
  TakeoverActions actions = now >= ask_at_ ? ask(now) : TakeoverActions{};
  if (standing_ && !waits_for_word()) {
    for (TakeoverAction& action : count_votes(now)) actions.push_back(std::move(action));
  }
  return actions;
}

std::optional<TimePoint> Takeover::next_tick() const {
  if (state_ != State::Seeking) return {};
  TimePoint next = std::min(gives_up_at(), ask_at_);
  if (own_place() && !waits_for_word()) next = std::min(next, try_at_);
  return next;
}

// A term that others have reached: what was said in the one before counts no more.
void Takeover::hear_term(int term) {
  if (term <= term_) return;
  term_ = term;
  voted_for_.clear();
  standing_ = false;
  for_us_.clear();
}

TakeoverActions Takeover::stand(TimePoint now) {
  hear_term(term_ + 1);
  voted_for_ = self_;
  for_us_ = {self_};
  standing_ = true;
  pause_ = limits_.repeat;
  try_at_ = now + patience();
  return ask(now);
}

// A candidate asks all, again and again, since others may notice the loss later. Who is none only
// wants to know who leads, and asks one at a time: a large job has many that do.
TakeoverActions Takeover::ask(TimePoint now) {
  ask_at_ = now + pause_;
  pause_ = std::min(2 * pause_, limits_.repeat * (1 << pause_doublings));
  TakeoverActions actions;
  const std::vector<Seat> seats = others();
  if (standing_) {
    for (const Seat& seat : seats) {
      if (for_us_.count(seat.node_id) == 0) actions.push_back(AskSeat{seat, own_ask(seat)});
    }
    return actions;
  }
  if (seats.empty()) return actions;
  const auto has_vote = [&](const Seat& seat) { return seat.node_id == voted_for_; };
  const auto favourite = std::find_if(seats.begin(), seats.end(), has_vote);
  const bool again = favourite != seats.end() && asks_ % 2 == 0;
  const Seat& seat = again ? *favourite : seats[asks_ / 2 % seats.size()];
  actions.push_back(AskSeat{seat, own_ask(seat)});
  ++asks_;
  return actions;
}

AskVote Takeover::own_ask(const Seat& to) const {
  AskVote ask{.run_id = run_id_, .to = to.node_id, .candidate = {}};
  if (!standing_) return ask;
  ask.candidate = self_;
  ask.term = term_;
  ask.heard_term = last_.term;
  ask.attempt = last_.round.attempt;
  return ask;
}

TakeoverActions Takeover::give_up(std::string why, bool still_there, const Seat& coordinator) {
  state_ = State::Over;
  TakeoverActions actions;
  stop_asking(actions);
  actions.push_back(GiveUp{std::move(why), still_there, coordinator});
  return actions;
}

bool Takeover::can_win() const {
  const auto others_agree = [&](const std::string& id) {
    return it_votes_ || id != coordinator_.node_id;
  };
  const auto enough = [&](const Council& council) {
    return count_in(council, others_agree) >= enough_with_word(council, arbitration());
  };
  return enough(last_.council) && enough(last_.before) && !last_.council.empty();
}

bool Takeover::is_older(const AskVote& ask) const {
  return std::pair(ask.heard_term, ask.attempt) < std::pair(last_.term, last_.round.attempt);
}

// Longer than a candidate needs to win and to say so, and another time for each, so that two that
// split the votes once do not do so again.
Milliseconds Takeover::patience() const {
  return limits_.stagger * (10 + 3 * own_place().value_or(0));
}

// All that may vote but this agent and the lost one, each once. How many votes are enough does not
// change when one resigns: the others may not all have heard of it, and count with the same number.
std::vector<Seat> Takeover::others() const {
  std::vector<Seat> seats;
  for (const Council* council : {&last_.council, &last_.before}) {
    for (const Seat& seat : *council) {
      if (seat.node_id == self_) continue;
      if (seat.node_id == coordinator_.node_id && !it_votes_) continue;
      const auto& resigned = last_.resigned;
      if (std::find(resigned.begin(), resigned.end(), seat.node_id) != resigned.end()) continue;
      if (std::find(seats.begin(), seats.end(), seat) == seats.end()) seats.push_back(seat);
    }
  }
  return seats;
}

// Counted without the lost one, so that the first that is left stands at once. Nothing: it sits in
// no council and can only follow.
std::optional<int> Takeover::own_place() const {
  if (coordinator_.node_id == self_) return {};  // It has led, and leaves.
  int place = 0;
  for (const Seat& seat : last_.council) {
    if (seat.node_id == self_) return place;
    if (seat.node_id != coordinator_.node_id) ++place;
  }
  return {};
}

}  // namespace ddprun::rendezvous
