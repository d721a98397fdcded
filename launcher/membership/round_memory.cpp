// Apart from the membership, whose sockets it does not need, so that the simulation of whole jobs
// (tests/rendezvous/takeover/job_simulation.h) runs on this and not on a copy.
#include "launcher/membership/round_memory.h"

#include <algorithm>
#include <variant>

namespace ddprun::launcher {

using namespace rendezvous;

void RoundMemory::heard(const ControlMessage& message, TimePoint now) {
  if (const auto* succession = std::get_if<Succession>(&message)) succession_ = *succession;
  if (const auto* round = std::get_if<RoundStart>(&message)) {
    of_another_job_ = left_ && !knows_any();
    left_.reset();
    seat_ = RoundSeat{.term = round->term,
                      .attempt = round->attempt,
                      .group_rank = round->group_rank,
                      .founder = round->founder};
    workers_ = round->nproc;
    began_ = now;
    said_.clear();
  }
  const auto* stop = std::get_if<Stop>(&message);
  if (stop != nullptr && stop->final_verdict) ends_ = true;
  const auto* finish = std::get_if<Finish>(&message);
  if (finish != nullptr) finish_heard_ = true;
  if (finish != nullptr && !finish->may_rejoin) {
    job_is_over_ = finish->exit_status != exit_status::coordinator_lost;
  }
}

bool RoundMemory::is_over(const ControlMessage& message) const {
  if (!seat_) return false;
  if (const auto* round = std::get_if<RoundStart>(&message)) {
    return round_name(*round) < round_name(*seat_);
  }
  const auto* stop = std::get_if<Stop>(&message);
  return stop != nullptr && round_name(*stop) < round_name(*seat_);
}

void RoundMemory::said(const ControlMessage& message) {
  if (std::holds_alternative<Leaving>(message)) ends_ = true;
  said_.push_back(message);
}

void RoundMemory::forget() {
  if (seat_) {
    left_ = succession_.council;
    std::erase_if(*left_,
                  [this](const Seat& seat) { return seat.group_rank == seat_->group_rank; });
  }
  seat_.reset();
  workers_ = 0;
  said_.clear();
  finish_heard_ = false;
}

// Whether one of those that were left is in the round at hand, or in the last one before it.
bool RoundMemory::knows_any() const {
  const auto is_known = [this](const std::string& id) {
    return std::any_of(left_->begin(), left_->end(),
                       [&](const Seat& seat) { return seat.node_id == id; });
  };
  return count_in(succession_.council, is_known) + count_in(succession_.before, is_known) > 0;
}

}  // namespace ddprun::launcher
