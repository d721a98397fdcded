// The gradient reducers of one communicator, which take turns (reduction_turns.h).
//
// There is one group for each communicator, which whoever wraps a module finds by itself.
//
// Threads: hooks of autograd and the thread that trains; all members share the group's mutex.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker/communicator.h"
#include "worker/torch/reduction_turns.h"

namespace ddprun::worker {

class ReducerGroup {
 public:
  using Member = ReductionTurns::Member;

  // What the group must know of a reducer. It calls these with its mutex held.
  class Reducer {
   public:
    virtual ~Reducer() = default;
    // From the first gradient of a backward until its reduction has ended.
    virtual bool is_running() const = 0;
    // The end of backward may end the reduction: no gradient is missing, or any may be.
    virtual bool can_finish() const = 0;
    // Queues the buckets that are full. True: they were the last, and finish() will queue nothing.
    virtual bool launch_full_buckets() = 0;
    // Queues what is left, waits for all of it.
    virtual void finish() = 0;
    // Backward has ended and this cannot finish: waits for what is queued.
    virtual void pause() = 0;
    // What is missing, for the message of an error.
    virtual std::string unfinished_message() const = 0;
  };

  static std::shared_ptr<ReducerGroup> of(Communicator& communicator);

  Member enter(Reducer& reducer);
  void leave(Member member);
  void expect(Member member);

  // The others wait for it no longer. Mutex held.
  void pass(Member member) { turns_.pass(member); }

  // After a member got a gradient: queues what may go. Mutex held.
  void advance();

  // Finishes, in the order of their turns, those that can, up to the first that cannot; nothing is
  // queued when it returns. All but the first such call do nothing. Throws what the reductions
  // throw.
  void end_of_backward();

  // The first by its turn that could not finish; null when there is none.
  const Reducer* first_unfinished() const;

  std::mutex& mutex() const { return mutex_; }

 private:
  std::vector<Member> running() const;

  mutable std::mutex mutex_;
  ReductionTurns turns_;
  std::map<Member, Reducer*> reducers_;
};

}  // namespace ddprun::worker
