// What a worker has heard of its attempt and its next rank, from the launcher that may give it
// several (rendezvous/contract/spare_channel.h):
//
//   Working --"the attempt is over"--> Over --park()--> Parked --a rank--> Given --take()-->
//   Working, or Over if that attempt is over before its rank was taken
//      any of them --the connection ends, or what comes is no message--> Gone
//
// A core: no sockets, threads or clock.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/contract/spare_channel.h"

namespace ddprun::worker {

class MembershipState {
 public:
  enum class Phase {
    Working,
    Over,    // And this process is still in it.
    Parked,  // It has left the attempt, and has no rank.
    Given,   // A rank has come that was not taken yet.
    Gone     // Nothing will come any more.
  };

  Phase phase() const { return phase_; }
  const std::string& why() const { return why_; }  // The attempt that ended last was over.

  // As they came, however they are cut. What does not belong into the phase changes nothing: the
  // attempt told to be over while it is, or before its rank has come; a rank for a process that has
  // one.
  void hear(std::string_view bytes);
  // A rank that has come before still counts.
  void hang_up();

  void park();                          // In Over alone.
  rendezvous::Environment take_rank();  // In Given alone.

 private:
  void hear_message(const rendezvous::Environment& message);

  Phase phase_ = Phase::Working;
  bool hung_up_ = false;
  bool over_before_taken_ = false;  // In Given: the attempt of that rank.
  std::string why_;
  std::string unread_;  // The beginning of a message.
  rendezvous::Environment rank_;
};

}  // namespace ddprun::worker
