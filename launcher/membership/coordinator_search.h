// Where this node looks for the job's coordinator, and for how long.
//
//   at first       at the endpoint that all nodes know, or where another meeting place says
//   lost           a member of a round has a part in finding the next one (rendezvous/takeover); a
//                  node that only stood by, or was cut off, joins again as a new one
//   told           by a node that leads, or that knows who does: there
//   not there      the seat that was named and the endpoint take turns, until the time is over
//
// What is to be done comes back as a step. A core: no sockets, threads or clock. The simulation of
// whole jobs (tests/rendezvous/takeover/job_simulation.h) runs on it, too.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "launcher/membership/round_memory.h"
#include "rendezvous/control/control_message.h"
#include "rendezvous/control/inherited.h"
#include "rendezvous/control/liveness.h"
#include "rendezvous/takeover/takeover.h"

namespace ddprun::launcher {

struct SearchLimits {
  rendezvous::Milliseconds join_timeout{0};
  rendezvous::Milliseconds election_limit{0};     // In which a takeover is decided.
  rendezvous::Milliseconds heartbeat_timeout{0};  // Whoever said that it leads answers within it.
  bool may_be_taken_over = false;
  // Something names the coordinator: no endpoint is known beforehand.
  bool meets_elsewhere = false;
};

struct SearchStep {
  enum class Then {
    Nothing,
    Connect,      // To target(), after `pause`.
    Elect,        // The coordinator is lost: this node has a part in who follows.
    ElectLeaver,  // The same, and the one that leaves votes, too.
    Unreachable,  // The end of the search, for `why`.
    Lost,         // For `why`; `silent` as ControlClientCallbacks have it.
  };
  Then then = Then::Nothing;
  bool asks_members = false;  // First: who was in the last round may know who leads.
  rendezvous::Milliseconds pause{0};
  std::string why;
  bool silent = false;
};

class CoordinatorSearch {
 public:
  using TimePoint = rendezvous::TimePoint;

  // `node_id` is what the others call this node.
  CoordinatorSearch(const SearchLimits& limits, std::string node_id)
      : limits_(limits), node_id_(std::move(node_id)) {}

  const std::string& node_id() const { return node_id_; }
  const std::string& replaced_id() const { return replaced_id_; }  // Before it was cut off, or "".
  const RoundMemory& round() const { return round_; }
  const std::optional<rendezvous::Seat>& coordinator() const { return coordinator_; }
  // Where to connect to; null: to the endpoint, or to this node itself if it hosts that.
  const rendezvous::Seat* target() const;
  // How long to try there.
  rendezvous::Milliseconds patience(TimePoint now) const;
  // Says to the next coordinator that it is in the round that goes on.
  bool resumes() const { return resumes_; }
  bool is_new() const { return replaced_id_.empty() && round_.succession().round.attempt < 0; }
  bool joins() const { return joins_until_.has_value(); }
  bool is_over(TimePoint now) const { return !joins_until_ || now >= *joins_until_; }

  // ---- what happens to the connection ----
  void begins(TimePoint now) { joins_until_ = now + limits_.join_timeout; }
  void connects() { moved_ = false; }
  SearchStep unreachable(const std::string& why, bool hosts_endpoint, TimePoint now);
  SearchStep lost(const std::string& why, bool silent, bool hosts_endpoint, TimePoint now);

  // ---- what the coordinator says, and what it is told ----
  // False: it is about an earlier round, and nobody may act on it.
  bool hears(const rendezvous::ControlMessage& message, TimePoint now);
  void says(const rendezvous::ControlMessage& message) { round_.said(message); }
  // True: the coordinator has taken the round over, and is to hear again what was said in it.
  bool welcomed();
  // It leads no more: the connection's end is no loss. What follows is for later, unless this node
  // has gone elsewhere meanwhile.
  void sent_away() { moved_ = true; }
  bool is_sent_away() const { return moved_; }
  SearchStep goes_where(const rendezvous::Seat& coordinator, bool hosted_endpoint, TimePoint now);
  SearchStep hands_over(bool hosts_endpoint);
  // As a new node, `node_id`.
  SearchStep joins_again(std::string node_id, bool hosts_endpoint, TimePoint now);

  // ---- what is found ----
  // The word of a node that says that it leads in `term`; false: the election hears of it.
  bool believes(int term) const { return joins_until_ && term >= round_.succession().term; }
  SearchStep follows(const rendezvous::Seat& coordinator, bool hosts_endpoint);
  void named(const rendezvous::Seat& coordinator) { coordinator_ = coordinator; }
  void found(const rendezvous::Seat& coordinator);
  void found_nobody();  // This node founds the job.
  SearchStep gives_up(const rendezvous::GiveUp& end);
  // This node leads from here on, and connects to itself.
  rendezvous::Inherited leads(const rendezvous::Lead& elected, TimePoint now);

 private:
  bool may_try_on(TimePoint now) const { return limits_.may_be_taken_over && !is_over(now); }
  SearchStep lost_for(std::string why, bool silent) const;
  SearchStep goes_on_without_it(const std::string& why, bool silent, bool hosts_endpoint,
                                TimePoint now);

  SearchLimits limits_;
  std::string node_id_;
  std::string replaced_id_;
  std::optional<rendezvous::Seat> coordinator_;  // After a takeover; before: at the endpoint.
  RoundMemory round_;
  bool resumes_ = false;
  // Until the first welcome, and again after joins_again(): how long one is sought, ...
  std::optional<TimePoint> joins_until_;
  bool asks_endpoint_ = false;  // ... there instead of at `coordinator_`, which did not answer, ...
  bool moved_ = false;          // ... or somewhere else, as the last one has told.
  bool handed_over_ = false;    // The coordinator leaves, and another one is chosen.
  std::string lost_why_;        // How the coordinator was lost ...
  bool lost_silent_ = false;    // ... as ControlClientCallbacks have it.
  bool only_waited_ = false;    // Had no part in the round whose coordinator's process has gone.
};

}  // namespace ddprun::launcher
