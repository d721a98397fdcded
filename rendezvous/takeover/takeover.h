// Which agent becomes the coordinator when the one that was is gone.
//
//             coordinator lost                   a majority of the council votes for this agent
//  Following ------------------> Seeking ------------------------------------------------> Leading
//      ^                          |    |
//      |   another one leads      |    | no majority within the limit, or none can be
//      +--------------------------+    +-----------------------------------------------> Over
//
// Where an arbiter is to be asked (rendezvous/control/council.h says of whom how many votes are
// then enough), an agent with these votes waits for its word, and leads with it.
//
// This is the election of Raft (Ongaro and Ousterhout 2014, sections 5.2, 5.4.1 and 6) with the
// last membership in place of its log: a term is a number that each election raises, an agent votes
// once in a term, and only for one whose last round is not older than its own. A round counts as
// settled once a majority of the council before it has started it (rendezvous/job/quorum.h); until
// then a candidate needs a majority of both councils. What Raft has and this has not: nothing is
// kept on disk, since an agent that starts again is another one (its node_id is new) and sits in no
// council.
//
// The lowest group rank stands at once, each further one later, so that there is one candidate as a
// rule. Who hears its coordinator votes for nobody, so that one node's broken link costs the
// others nothing.
// A core: no sockets, threads or clock.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/control/council.h"
#include "rendezvous/control/liveness.h"
#include "rendezvous/control/word.h"

namespace ddprun::rendezvous {

struct TakeoverLimits {
  Milliseconds stagger{100};  // Between the first tries of two neighbours in the council.
  Milliseconds repeat{50};    // How often those that did not answer are asked again.
  // From the loss. Others may notice it as late as a heartbeat time-out after this agent, and who
  // still hears the coordinator after that is right.
  Milliseconds all_notice{6'000};
  Milliseconds give_up{20'000};
  // Counts once a coordinator has said that the job has one.
  Arbitration arbitration = Arbitration::None;
  // From the loss: the coordinator may have lost this agent alone, and shall get the word then.
  // Also the time in which enough votes without it may come.
  Milliseconds ask_arbiter_after{1'000};
  Milliseconds arbiter_give_up{50'000};  // As give_up, with enough votes to ask it.
};

// What the shell must do.
struct AskSeat {  // The answer comes back to on_vote(); none need come.
  Seat seat;
  AskVote ask;
};
struct Lead {  // Become the coordinator of the last membership, under this term.
  int term = 0;
  std::vector<RoundName> given;  // Rounds of which this agent has the arbiter's word.
};
struct AskArbiter {  // The answer comes to on_word(); asking goes on until StopAsking or Lead.
  WordWish wish;
};
struct StopAsking {};
struct Follow {  // Connect to this coordinator; it says its term itself.
  Seat coordinator;
};
struct GiveUp {
  std::string why;           // For people, with what would have helped.
  bool still_there = false;  // Others hear the coordinator: only this agent has lost it.
  Seat coordinator = {};     // Whom the arbiter names, if it was asked; otherwise nobody.
};
using TakeoverAction = std::variant<AskSeat, AskArbiter, StopAsking, Lead, Follow, GiveUp>;
using TakeoverActions = std::vector<TakeoverAction>;

class Takeover {
 public:
  enum class State { Following, Seeking, Leading, Over };

  Takeover(std::string run_id, std::string node_id, const TakeoverLimits& limits)
      : run_id_(std::move(run_id)), self_(std::move(node_id)), limits_(limits) {}

  State state() const { return state_; }
  int term() const { return term_; }

  void leads();  // This agent has the coordinator from the beginning.

  // From the coordinator.
  void heard(const Succession& succession);
  // Also after Follow, when that one cannot be reached.
  TakeoverActions coordinator_lost(TimePoint now);
  // The coordinator leaves, and votes before it goes.
  TakeoverActions coordinator_hands_over(TimePoint now);
  // Another agent asks. Answers in any state.
  Vote on_ask(const AskVote& ask, TimePoint now);
  TakeoverActions on_vote(const std::string& from, const Vote& vote, TimePoint now);
  TakeoverActions on_word(const Word& word, TimePoint now);
  TakeoverActions on_tick(TimePoint now);
  std::optional<TimePoint> next_tick() const;

 private:
  void hear_term(int term);
  TakeoverActions stand(TimePoint now);
  TakeoverActions ask(TimePoint now);
  AskVote own_ask(const Seat& to) const;
  TakeoverActions give_up(std::string why, bool still_there = false, const Seat& coordinator = {});
  TakeoverActions seek(TimePoint now);
  bool can_win() const;
  TakeoverActions count_votes(TimePoint now);
  TakeoverActions lead(std::vector<RoundName> given);
  void stop_asking(TakeoverActions& actions);
  TimePoint gives_up_at() const;
  bool waits_for_word() const { return state_ == State::Seeking && asks_arbiter_; }
  Arbitration arbitration() const {
    return last_.job.empty() ? Arbitration::None : limits_.arbitration;
  }
  bool is_older(const AskVote& ask) const;
  std::vector<Seat> others() const;
  std::optional<int> own_place() const;
  Milliseconds patience() const;

  std::string run_id_;
  std::string self_;
  TakeoverLimits limits_;
  State state_ = State::Following;
  int term_ = 0;           // The highest that this agent knows of.
  std::string voted_for_;  // In term_; "" = nobody.
  Seat coordinator_;       // Seeking: the one that was lost ...
  bool it_votes_ = false;  // ... or is there still, and leaves.

  // The last membership that this agent has heard of.
  Succession last_;

  // While seeking.
  TimePoint lost_at_;
  TimePoint try_at_;  // When to stand (again).
  TimePoint ask_at_;
  Milliseconds pause_{0};         // Between two asks; grows.
  std::size_t asks_ = 0;          // Whom to ask next.
  bool standing_ = false;         // Has asked for votes in term_.
  std::set<std::string> for_us_;  // In term_.
  // It has enough votes in term_ with the arbiter's word, and neither votes for others nor stands
  // anew until it has heard that.
  bool asks_arbiter_ = false;
  std::string arbiter_why_;  // Why it could not be asked.
};

}  // namespace ddprun::rendezvous
