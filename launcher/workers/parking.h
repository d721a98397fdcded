// What one worker and the launcher have said to each other of leaving an attempt alive
// (rendezvous/contract/spare_channel.h), as the launcher has to remember it.
//
//                 'k'            DDPRUN_ATTEMPT_OVER           '\n'            a rank
//   (knows nothing) --> can park --------------------> told -----> parked ------------> can park
//                           |   '\n' before it is told                ^
//                           +-----------------------------------------+
//   any of them, where it may not stay or has not parked in time --> asked to end, by a signal
//
// Whom the group keeps while its attempt ends is GroupState's to say (group_state.h).
// A core: no sockets, processes or clock.
#pragma once

#include <string_view>

namespace ddprun::launcher {

class Parking {
 public:
  // What it wrote, however that is cut. A byte that this launcher does not know means nothing.
  void hear(std::string_view said);
  // It has closed its end, and can be given no rank any more. True: it was parked, and is of no use
  // to anybody now.
  bool hang_up();

  // Once an attempt each: whether DDPRUN_ATTEMPT_OVER is to be sent now ...
  bool take_word();
  // ... and whether somebody is to hear that it has parked.
  bool take_news();
  // A signal to end goes to it, once an attempt. `out_of_time`: it had the grace to park in. True:
  // it had said that it can, so that people should hear why it got the signal.
  bool ask_to_end(bool out_of_time);
  // Of the next attempt.
  void give_rank();

  bool can_park() const { return can_park_; }
  bool parked() const { return parked_; }
  bool asked() const { return asked_; }  // In this attempt.
  bool late() const { return late_; }    // It has not parked in time.

 private:
  bool can_park_ = false;
  bool parked_ = false;
  bool told_over_ = false;
  bool told_parked_ = false;
  bool asked_ = false;
  bool late_ = false;
};

}  // namespace ddprun::launcher
