// Whether this coordinator still decides for the job: the term in which it leads, the last round
// that it knows, and what others could have decided without it.
//
// It is asked at two moments. When a node went without a goodbye: could those that are out of sight
// have chosen another coordinator? And before a round closes: is nobody left who could? What the
// nodes' own votes do not settle, an arbiter's word does (quorum.h counts both); it is waited for,
// and the wait has a limit.
//
//   Leads ---- half of the council is gone, or the word is not kept yet ----> Waits
//     ^                                                                        |  |  |
//     +------------------------- the word is this one's -----------------------+  |  | no word
//     |                                                                           |  | in time
//     | most of the council is gone               it is another one's             |  |
//     +--------------------------------> GivesWay <-------------------------------+  +--> Ends
//
// A round is known by the term in which it was closed and its attempt's number; a number is never
// used again, not even one that only a node of another round has told of.
// A core: no sockets, threads or clock.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/control/inherited.h"
#include "rendezvous/control/liveness.h"
#include "rendezvous/control/word.h"
#include "rendezvous/job/quorum.h"

namespace ddprun::rendezvous {

class Mandate {
 public:
  struct Limits {
    std::string coordinator;         // node_id of its own agent.
    bool may_be_taken_over = false;  // Otherwise nobody else can decide, and this one always does.
    Arbitration arbitration = Arbitration::None;
    std::string job;             // As Succession has it.
    Milliseconds word_limit{0};  // Waits for the arbiter for so long.
  };
  struct Ruling {
    enum class Kind {
      Leads,
      Waits,     // No round may close until the arbiter has spoken.
      GivesWay,  // Another one coordinates the job, or may.
      Ends,      // Nobody could say who does.
    };
    Kind kind = Kind::Leads;
    std::string why = {};              // For people; not with Leads.
    std::optional<WordWish> ask = {};  // Waits: what the arbiter is to be asked now.
    bool settled = false;              // Leads: with that, the last round is.
  };
  using Present = std::function<bool(const std::string& node_id)>;

  explicit Mandate(Limits limits);
  void inherit(const Inherited& inherited);

  int term() const { return term_; }                   // 0: the job's first coordinator.
  RoundName round() const { return quorum_.round(); }  // attempt -1 before the first one.
  bool is_last_round(const RoundSeat& seat) const;
  Succession succession(int restarts_used) const;

  // An agent has told of a round that this coordinator may know nothing of: what follows it has a
  // number above that, so that no node is in two attempts of one name.
  void attempt_seen(int attempt);
  void round_closed(Council council, int nodes);  // Gives it its name.
  // As Quorum has them: true when a succession is to be told again.
  bool started(const std::string& node_id) { return quorum_.started(node_id); }
  bool resigned(const std::string& node_id) { return quorum_.resigned(node_id); }

  Ruling after_loss(const Present& present, TimePoint now);
  Ruling before_round(const Present& present, TimePoint now);
  // Whether those for whom `votes` is true, and this coordinator as it leaves, can choose the next.
  bool can_be_handed_over(const Present& votes) const;

  bool waits_for_word() const { return word_by_.has_value(); }
  Ruling on_word(const Word& word);  // While it waits.
  Ruling on_tick(TimePoint now) const;
  std::optional<TimePoint> next_tick() const { return word_by_; }

 private:
  Ruling ask(std::vector<RoundName> rounds, bool keep, TimePoint now);

  Limits limits_;
  int term_ = 0;
  int nodes_ = 0;          // In the last round.
  int attempt_seen_ = -1;  // The highest that an agent has told of.
  Quorum quorum_;
  std::optional<TimePoint> word_by_;  // Asked for, and not heard yet ...
  std::string word_why_;              // ... since the arbiter cannot be reached.
};

}  // namespace ddprun::rendezvous
