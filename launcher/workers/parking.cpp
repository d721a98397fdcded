// Which byte counts when: the worker may be of another version, or no program of ours.
#include "launcher/workers/parking.h"

#include <utility>

#include "rendezvous/contract/spare_channel.h"

namespace ddprun::launcher {

void Parking::hear(std::string_view said) {
  for (const char byte : said) {
    if (byte == rendezvous::can_park) can_park_ = true;
    // A spare's word that it is ready is the same byte, and is read before it has a rank.
    if (byte == rendezvous::gives_rank_back && can_park_) parked_ = true;
  }
}

bool Parking::hang_up() {
  can_park_ = false;
  return std::exchange(parked_, false);
}

bool Parking::take_word() { return !parked_ && !std::exchange(told_over_, true); }

bool Parking::take_news() { return parked_ && !std::exchange(told_parked_, true); }

bool Parking::ask_to_end(bool out_of_time) {
  if (std::exchange(asked_, true)) return false;
  late_ = out_of_time && can_park_;
  return late_;
}

void Parking::give_rank() {
  parked_ = told_over_ = told_parked_ = asked_ = late_ = false;  // can_park_ stands.
}

}  // namespace ddprun::launcher
