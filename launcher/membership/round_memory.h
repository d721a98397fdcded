// What this node has heard and said in its round: what it tells another coordinator that takes the
// round over, since nobody knows what the lost one had passed on.
// A core: no sockets, threads or clock.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/control/liveness.h"

namespace ddprun::launcher {

class RoundMemory {
 public:
  void heard(const rendezvous::ControlMessage& message, rendezvous::TimePoint now);
  // It is about a round before the one that this node is in: nobody may act on it.
  bool is_over(const rendezvous::ControlMessage& message) const;
  void said(const rendezvous::ControlMessage& message);
  // This agent is a new node from here on; `own_id` is what it was before.
  void forget(const std::string& own_id);
  // The round shares no other node with the one that this node was in before it became a new one:
  // it may be of another job with the same name, to which nobody may bring an old state.
  bool is_of_another_job() const { return of_another_job_; }

  // Whether the round could go on for this node under another coordinator: not if it has none, or
  // goes itself, or if the job's verdict is out. Who has said that it goes votes no more, even
  // where the others are no majority without it: the coordinator, which may only be out of sight,
  // counts on that (rendezvous/job/quorum.h).
  bool could_go_on() const { return seat_ && !ends_; }
  // This node goes, or the job's verdict is out.
  bool ends() const { return ends_; }
  // It stands by beside a round that others are in.
  bool only_waits() const { return !seat_ && !ends_ && succession_.round.attempt >= 0; }
  bool finish_heard() const { return finish_heard_; }
  // Everywhere, and not only for this coordinator, which may have to end where others go on.
  bool job_is_over() const { return job_is_over_; }

  const rendezvous::Succession& succession() const { return succession_; }  // The last one.
  const std::optional<rendezvous::RoundSeat>& seat() const { return seat_; }
  int workers() const { return workers_; }  // Of this node in that round; 0: as its hello said.
  rendezvous::TimePoint began() const { return began_; }  // As this node heard of it.
  const std::vector<rendezvous::ControlMessage>& said() const { return said_; }

 private:
  std::set<std::string> known() const;

  rendezvous::Succession succession_;
  bool of_another_job_ = false;
  std::string closed_by_;                      // node_id: the round.
  std::optional<std::set<std::string>> left_;  // Since forget(): others of the round before.
  std::optional<rendezvous::RoundSeat> seat_;
  int workers_ = 0;
  rendezvous::TimePoint began_;
  std::vector<rendezvous::ControlMessage> said_;
  bool ends_ = false;
  bool finish_heard_ = false;
  bool job_is_over_ = false;
};

}  // namespace ddprun::launcher
