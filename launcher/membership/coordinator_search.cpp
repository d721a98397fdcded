// Each event changes what this node knows of the coordinator, and says what follows: membership.cpp
// carries it out.
#include "launcher/membership/coordinator_search.h"

#include <algorithm>
#include <utility>

namespace ddprun::launcher {

using namespace rendezvous;
using Then = SearchStep::Then;

namespace {

// Two that name each other must not be asked without a pause.
constexpr Milliseconds soon{50};
constexpr Milliseconds later{250};

SearchStep connect_after(Milliseconds pause) { return {.then = Then::Connect, .pause = pause}; }

}  // namespace

const Seat* CoordinatorSearch::target() const {
  return coordinator_ && !asks_endpoint_ ? &*coordinator_ : nullptr;
}

Milliseconds CoordinatorSearch::patience(TimePoint now) const {
  Milliseconds left = limits_.join_timeout;
  if (joins_until_) {
    left =
        std::chrono::ceil<Milliseconds>(std::max(*joins_until_ - now, TimePoint::duration::zero()));
  }
  // Whoever said that it leads is there; if not, somebody else will.
  return coordinator_ ? std::min(left, limits_.heartbeat_timeout) : left;
}

SearchStep CoordinatorSearch::lost_for(std::string why, bool silent) const {
  return {.then = Then::Lost, .why = std::move(why), .silent = silent};
}

SearchStep CoordinatorSearch::unreachable(const std::string& why, bool hosts_endpoint,
                                          TimePoint now) {
  if (resumes_) return lost(why, /*silent=*/true, hosts_endpoint, now);
  if (!coordinator_ || !may_try_on(now)) return {.then = Then::Unreachable, .why = why};
  // It may have gone from where it was, and come back there; or the first endpoint knows.
  asks_endpoint_ = !asks_endpoint_;
  SearchStep step = connect_after(Milliseconds{0});
  step.asks_members = !asks_endpoint_;
  return step;
}

SearchStep CoordinatorSearch::lost(const std::string& why, bool silent, bool hosts_endpoint,
                                   TimePoint now) {
  if (moved_ || round_.finish_heard()) return {};
  return goes_on_without_it(why, silent, hosts_endpoint, now);
}

SearchStep CoordinatorSearch::goes_on_without_it(const std::string& why, bool silent,
                                                 bool hosts_endpoint, TimePoint now) {
  if (may_try_on(now) && (coordinator_ || !replaced_id_.empty())) return connect_after(later);
  const bool may_follow = limits_.may_be_taken_over && !hosts_endpoint;
  if (!may_follow || !round_.could_go_on()) {
    // It has no vote, but knows whom to ask where the job goes on.
    only_waited_ = may_follow && !silent && round_.only_waits();
    return lost_for(why, silent || only_waited_);
  }
  handed_over_ = false;
  lost_why_ = why;
  lost_silent_ = silent;
  return {.then = Then::Elect, .why = why};
}

bool CoordinatorSearch::hears(const ControlMessage& message, TimePoint now) {
  if (round_.is_over(message)) return false;
  round_.heard(message, now);
  return true;
}

bool CoordinatorSearch::welcomed() {
  joins_until_.reset();
  return std::exchange(resumes_, false);
}

// Also when its own endpoint says so, which has stepped down before this agent was welcomed there.
// A member of a round that was on its way to who leads next has no time of its own: for it that one
// is lost as if it were silent, and it has a part in finding another.
SearchStep CoordinatorSearch::goes_where(const Seat& coordinator, bool hosted_endpoint,
                                         TimePoint now) {
  const bool known = !coordinator.address.empty() && coordinator.node_id != node_id_;
  if (known) coordinator_ = coordinator;
  if (known || limits_.meets_elsewhere) asks_endpoint_ = !known;
  const SearchStep step = connect_after(known ? soon : later);
  if (!is_over(now + step.pause)) return step;
  if (resumes_) {
    return goes_on_without_it("it leads no more", /*silent=*/true, hosted_endpoint, now);
  }
  return {.then = Then::Unreachable, .why = "no node that was asked knows where the job goes on"};
}

// The node that led votes and then follows, as a member that leaves. It stays until all have heard
// the next coordinator's word: without its vote there may be none.
SearchStep CoordinatorSearch::hands_over(bool hosts_endpoint) {
  handed_over_ = true;
  lost_why_ = "it has handed the job over";
  lost_silent_ = !round_.seat();  // Who only waits for a round looks for where it goes on.
  if (!hosts_endpoint && !round_.could_go_on()) return lost_for(lost_why_, lost_silent_);
  return {.then = Then::ElectLeaver};
}

// One that led and lost most nodes has no long time: it holds the job's first endpoint, perhaps,
// where a fresh start could bring the job back. Nor has one that only waited for a place: with the
// coordinator's process gone there is a next one soon, or none. It waits to hear of that one and
// does not go to the first endpoint, where a launcher that was started again knows of no round and
// would begin one with it, beside the one that goes on. Where something names the coordinator, that
// names the right one.
SearchStep CoordinatorSearch::joins_again(std::string node_id, bool hosts_endpoint, TimePoint now) {
  const bool knows_nobody = hosts_endpoint && !coordinator_;
  const bool waited = std::exchange(only_waited_, false);
  replaced_id_ = std::exchange(node_id_, std::move(node_id));
  round_.forget(replaced_id_);
  resumes_ = asks_endpoint_ = false;
  joins_until_ = now + (knows_nobody || waited ? limits_.election_limit : limits_.join_timeout);
  const bool waits_to_hear = waited && !limits_.meets_elsewhere;
  SearchStep step = connect_after(waits_to_hear ? limits_.election_limit : Milliseconds{0});
  step.asks_members = true;
  return step;
}

SearchStep CoordinatorSearch::follows(const Seat& coordinator, bool hosts_endpoint) {
  const bool on_the_way = joins_until_ && coordinator_ == coordinator && !asks_endpoint_;
  if (hosts_endpoint || on_the_way) return {};
  found(coordinator);
  resumes_ = round_.seat().has_value();
  return connect_after(Milliseconds{0});
}

void CoordinatorSearch::found(const Seat& coordinator) {
  coordinator_ = coordinator;
  asks_endpoint_ = false;
}

void CoordinatorSearch::found_nobody() {
  coordinator_.reset();
  asks_endpoint_ = false;
}

SearchStep CoordinatorSearch::gives_up(const GiveUp& end) {
  if (joins_until_) return {};
  if (end.coordinator.port != 0) coordinator_ = end.coordinator;
  return lost_for(lost_why_ + "; " + end.why, lost_silent_ || end.still_there);
}

Inherited CoordinatorSearch::leads(const Lead& elected, TimePoint now) {
  coordinator_.reset();
  resumes_ = true;
  return {.term = elected.term,
          .succession = round_.succession(),
          .lost_why = lost_why_,
          .handed_over = std::exchange(handed_over_, false),
          .ran = std::chrono::duration_cast<Milliseconds>(now - round_.began()),
          .given = elected.given};
}

}  // namespace ddprun::launcher
