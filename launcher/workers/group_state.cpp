// The decisions that cost jobs their cause or their processes when they were wrong: each is a few
// lines here, and a table in its test.
#include "launcher/workers/group_state.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace ddprun::launcher {

using enum GroupAction;

GroupEnds ends_of(const std::vector<GroupMember>& members) {
  const auto gone = [](const GroupMember& member) {
    return (member.told && !member.ending) || member.parked;
  };
  const auto freed = [](const GroupMember& member) {
    return member.told && member.ending && member.only_memory;
  };
  const auto succeeded = [](const GroupMember& member) { return member.known && !member.failed; };
  if (!std::all_of(members.begin(), members.end(),
                   [&](const GroupMember& member) { return gone(member) || freed(member); })) {
    return GroupEnds::NotAll;
  }
  if (!std::all_of(members.begin(), members.end(), gone)) return GroupEnds::BeingFreed;
  return std::all_of(members.begin(), members.end(), succeeded) ? GroupEnds::AllSucceeded
                                                                : GroupEnds::SomeFailed;
}

void GroupState::started() {
  assert(!active_);
  *this = GroupState(limits_);
  active_ = true;
}

bool GroupState::spares(const GroupMember& member) const {
  if (!keeping() || member.told || member.known || member.asked) return false;
  return member.can_park && (member.parked || !late_);
}

GroupStep GroupState::stop(int signal, std::chrono::milliseconds grace, TimePoint now, Keep keep) {
  if (!active_) return {{}, "no workers"};
  if (killing_ && (!keeping() || keep != Keep::Nobody)) {
    return {{}, "SIGKILL is out, and nothing is stronger"};
  }
  const bool stopped = deadline_.has_value();
  if (stopped && !keeping()) keep = Keep::Nobody;
  if (keeping() && keep == Keep::Nobody) {  // To those who were spared, this is the first word.
    deadline_.reset();
    killing_ = false;
  }
  GroupStep step{{},
                 keep == Keep::Nobody ? "asked to end"
                 : keep == Keep::Held ? "asked to end, but for those who can park"
                                      : "asked to end, or to park"};
  keep_ = keep;
  grace_ = grace;
  if (keep == Keep::Parking) step.actions.push_back(TellOver);
  if (grace.count() > 0) {
    // The same signal twice makes some programs give up their clean-up: only another one is news.
    if (signal != signal_) step.actions.push_back(AskAnew);
    signal_ = signal;
    step.actions.push_back(Ask);
  } else {
    step.reason = "to be killed at once";
  }
  // A later stop() may be in more of a hurry, never in less: the grace that was promised to others
  // (a scheduler, the other nodes) has begun.
  deadline_ = std::min(deadline_.value_or(TimePoint::max()), now + grace);
  return step;
}

GroupStep GroupState::parker_lost() const {
  if (!active_) return {{}, "no workers"};
  if (!keeping() || grace_.count() == 0) return {{}, "nobody is spared"};
  return {{Ask}, "one that was spared cannot park any more"};
}

GroupStep GroupState::deadline_passed(TimePoint now, int parking, bool being_freed) {
  if (!active_ || !deadline_ || now < *deadline_) return {{}, "not yet"};
  if (keeping() && !late_ && !killing_ && parking > 0 && grace_.count() > 0) {
    late_ = true;
    deadline_ = now + grace_;
    return {{KillAsked, Ask}, "the grace is over, and some who said that they can park have not"};
  }
  late_ = true;
  if (killing_) {
    // Given up, it would fill the memory that the next attempt is to have.
    const TimePoint freed_by = killed_at_ + limits_.freed_wait;
    if (!being_freed || now >= freed_by) {
      return finished(GiveUp, "SIGKILL was sent long ago: the rest hangs in the kernel");
    }
    deadline_ = std::min(now + limits_.kill_wait, freed_by);
    return {{SayWait}, "the kernel takes apart what was killed"};
  }
  killing_ = true;
  killed_at_ = now;
  deadline_ = now + limits_.kill_wait;
  return {{Kill}, "the grace is over"};
}

GroupStep GroupState::leader_ended(bool left_behind) const {
  if (!active_) return {{}, "no workers"};
  if (!left_behind) return {{}, "a worker ended, and all of its group"};
  if (killing_) return {{}, "a worker ended, and SIGKILL is out to what it has left"};
  return {{AskIts}, "a worker ended, and left something behind"};
}

GroupStep GroupState::looked(GroupEnds ends, bool leftovers, TimePoint now) {
  if (!active_) return {{}, "no workers"};
  if (ends == GroupEnds::NotAll) return {{}, "workers live"};
  if (ends == GroupEnds::BeingFreed) {
    if (!another_follows() || leftovers) return {{}, "the kernel takes a worker apart"};
    return finished(Finish, "what is left is memory, and the next attempt need not wait for it");
  }
  if (!leftovers) return finished(Finish, "nothing is left");
  // An orphan may have been born since the last look: each look asks, or kills, those that are new.
  if (killing_) return {{Kill}, "something is left, and the grace is over"};
  if (!deadline_) {
    deadline_ =
        now + (ends == GroupEnds::SomeFailed ? limits_.failed_grace : limits_.leftover_grace);
  }
  return {{Ask}, "the workers have ended, and left something behind"};
}

GroupStep GroupState::finished(GroupAction how, std::string reason) {
  active_ = false;
  deadline_.reset();
  order_deadline_.reset();
  shared_deadline_.reset();
  return {{how}, std::move(reason)};
}

// Since when a death is kept back for a signal that the launcher may be about to get as well.
// Nothing: none is, or the attempt was stopped, and nobody is to blame for what comes after that.
std::optional<GroupState::TimePoint> GroupState::first_shared(
    const std::vector<GroupMember>& members, TimePoint now) const {
  std::optional<TimePoint> first;
  if (deadline_) return first;
  const std::vector<int>& shared = limits_.shared_signals;
  for (const GroupMember& ended : members) {
    if (ended.told || !ended.known || now >= ended.ended_at + limits_.shared_wait) continue;
    if (std::find(shared.begin(), shared.end(), ended.signal) == shared.end()) continue;
    first = std::min(first.value_or(ended.ended_at), ended.ended_at);
  }
  return first;
}

std::optional<GroupState::TimePoint> GroupState::tell_deadline() const {
  if (!order_deadline_ || !shared_deadline_) {
    return order_deadline_ ? order_deadline_ : shared_deadline_;
  }
  return std::min(order_deadline_, shared_deadline_);
}

TellStep GroupState::next_to_tell(const std::vector<GroupMember>& members,
                                  const EndedEarlier& ended_earlier, TimePoint now) {
  const bool wait = !order_deadline_ || now < *order_deadline_;
  const std::optional<TimePoint> shared = first_shared(members, now);
  shared_deadline_.reset();
  if (shared) shared_deadline_ = *shared + limits_.shared_wait;
  const int count = static_cast<int>(members.size());
  const auto member = [&](int i) -> const GroupMember& {
    return members[static_cast<std::size_t>(i)];
  };
  TellStep step;
  for (int i = 0; i < count; ++i) {
    const GroupMember& ended = member(i);
    if (ended.told || !ended.known) continue;
    // Who failed after it is most likely its victim.
    if (shared && ended.failed && ended.ended_at >= *shared) continue;
    // Only a failure has a cause that may be somebody else's end. A success has none, and whoever
    // was stopped is a victim anyway.
    bool after_another = false;
    for (int other = 0; ended.failed && !ended.stop_sent && other < count; ++other) {
      // Past the limit only those that have got through can still come before it.
      if (other == i || member(other).told || !(wait || member(other).known)) continue;
      after_another = after_another || ended_earlier(other, i);
    }
    step.kept_back = step.kept_back || after_another;
    if (after_another) continue;
    if (!step.member || ended.ended_at < member(*step.member).ended_at) step.member = i;
  }
  if (!step.kept_back) order_deadline_.reset();
  if (step.kept_back && !order_deadline_) order_deadline_ = now + limits_.order_wait;
  step.reason = step.member      ? "nobody who has ended began to before it"
                : step.kept_back ? "who began to end earlier has not got through yet"
                : shared         ? "the launcher may be about to get the same signal"
                                 : "nobody has ended";
  return step;
}

}  // namespace ddprun::launcher
