// Carries out whose turn it is; who shares a communicator finds the same group here.
#include "worker/torch/reducer_group.h"

#include <cassert>

#include "worker/torch/shared_by_communicator.h"

namespace ddprun::worker {

std::shared_ptr<ReducerGroup> ReducerGroup::of(Communicator& communicator) {
  return shared_by_communicator<ReducerGroup>(communicator,
                                              [] { return std::make_shared<ReducerGroup>(); });
}

ReducerGroup::Member ReducerGroup::enter(Reducer& reducer) {
  const std::lock_guard lock(mutex_);
  const Member member = turns_.enter();
  reducers_[member] = &reducer;
  return member;
}

void ReducerGroup::leave(Member member) {
  const std::lock_guard lock(mutex_);
  turns_.leave(member);
  reducers_.erase(member);
}

void ReducerGroup::expect(Member member) {
  const std::lock_guard lock(mutex_);
  turns_.expect(member);
}

void ReducerGroup::advance() {
  auto member = turns_.turn();
  while (member) {
    Reducer& reducer = *reducers_.at(*member);
    if (!reducer.is_running() || !reducer.launch_full_buckets()) return;
    member = turns_.pass(*member);
  }
}

void ReducerGroup::end_of_backward() {
  const std::lock_guard lock(mutex_);
  bool holds = false;
  for (const Member member : turns_.sorted(running())) {
    Reducer& reducer = *reducers_.at(member);
    // Gradients may still come: backward within backward (checkpointing) has an end of its own.
    // Those behind it wait, or this rank's order would not be its peers'.
    holds = holds || !reducer.can_finish();
    if (holds) {
      reducer.pause();
      continue;
    }
    reducer.finish();
    assert(!reducer.is_running());
    turns_.pass(member);
  }
}

const ReducerGroup::Reducer* ReducerGroup::first_unfinished() const {
  const std::lock_guard lock(mutex_);
  for (const Member member : turns_.sorted(running())) {
    if (!reducers_.at(member)->can_finish()) return reducers_.at(member);
  }
  return nullptr;
}

std::vector<ReducerGroup::Member> ReducerGroup::running() const {
  std::vector<Member> members;
  for (const auto& [member, reducer] : reducers_) {
    if (reducer->is_running()) members.push_back(member);
  }
  return members;
}

}  // namespace ddprun::worker
