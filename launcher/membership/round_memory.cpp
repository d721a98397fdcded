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
    closed_by_ = round->coordinator;
    const auto is_known = [&](const std::string& id) { return left_->contains(id); };
    const std::set<std::string> here = known();
    of_another_job_ = left_ && std::none_of(here.begin(), here.end(), is_known);
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

// Of the round at hand and the last one before it: as far as this node is told.
std::set<std::string> RoundMemory::known() const {
  std::set<std::string> ids{closed_by_};
  for (const Council* council : {&succession_.council, &succession_.before}) {
    for (const Seat& seat : *council) ids.insert(seat.node_id);
  }
  return ids;
}

void RoundMemory::forget(const std::string& own_id) {
  if (seat_) {
    left_ = known();
    left_->erase(own_id);
    left_->erase("");
  }
  seat_.reset();
  workers_ = 0;
  said_.clear();
  finish_heard_ = false;
}

}  // namespace ddprun::launcher
