// Which message counts in which phase. Messages of a launcher of another version may hold anything.
#include "worker/membership_state.h"

#include <stdexcept>
#include <utility>

namespace ddprun::worker {
namespace {

// Of one message. An environment is mostly a few kilobytes; the kernel takes 2 MiB of one in all.
constexpr std::size_t message_bytes_max = 2u << 20;

}  // namespace

void MembershipState::hear(std::string_view bytes) {
  unread_.append(bytes);
  for (;;) {
    const auto message = rendezvous::take_message(unread_);
    if (!message) break;
    hear_message(*message);
  }
  if (unread_.size() > message_bytes_max) hang_up();
}

void MembershipState::hear_message(const rendezvous::Environment& message) {
  if (const auto why = rendezvous::attempt_over(message)) {
    if (phase_ == Phase::Working) {
      phase_ = Phase::Over;
    } else if (phase_ == Phase::Given) {
      over_before_taken_ = true;  // It comes once: who skipped it would wait for peers that left.
    } else {
      return;
    }
    why_ = *why;
  } else if (phase_ == Phase::Parked) {
    phase_ = Phase::Given;
    rank_ = message;
  }
}

void MembershipState::hang_up() {
  hung_up_ = true;
  if (phase_ != Phase::Given) phase_ = Phase::Gone;
}

void MembershipState::park() {
  if (phase_ != Phase::Over) throw std::logic_error("only an attempt that is over can be left");
  phase_ = Phase::Parked;
}

rendezvous::Environment MembershipState::take_rank() {
  if (phase_ != Phase::Given) throw std::logic_error("no rank has come");
  const bool over = std::exchange(over_before_taken_, false);
  phase_ = hung_up_ ? Phase::Gone : over ? Phase::Over : Phase::Working;
  return std::exchange(rank_, {});
}

}  // namespace ddprun::worker
