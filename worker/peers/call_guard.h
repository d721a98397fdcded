// Before and after a call of a communicator, whatever moves its bytes: it is numbered and checked,
// it is refused once the group was aborted, and what makes it fail ends the group.
//
//   begin() --> ok: the Call, as all ranks must make it
//           --> aborted already: CommunicatorError with the first reason, whoever had it
//           --> cannot be done:  recorded as what this rank fails of, then abort(), because the
//                                other ranks wait for this one, then the same error
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "worker/peers/abortable.h"
#include "worker/peers/frame.h"

namespace ddprun::worker {

// Average of integers is refused: there is no result that is both an integer and an average.
bool is_supported(DataType type, ReduceOp op);

class CallGuard {
 public:
  // `group` is what a failure ends; it must outlive this object.
  CallGuard(int rank, int world_size, Abortable& group);

  // The next collective. `pointers` may be null only where there are no elements.
  Call begin(CallKind kind, std::size_t count, DataType type,
             std::initializer_list<const void*> pointers, ReduceOp op = ReduceOp::Sum,
             int root = 0);
  // The next message to (from) `peer`; `name` is what the caller called. A peer that there is not
  // is an error of this rank alone: nobody waits for that message.
  Call begin_message(const char* name, const void* data, std::size_t count, DataType type, int peer,
                     bool sends);

  void throw_if_aborted(const Call& call) const {
    if (group_.aborted()) throw_aborted(call);
  }
  // Ends the group; throws CommunicatorError with the first reason, which may be another one.
  [[noreturn]] void fail(const Call& call, const std::string& reason);
  // The same with "rank N: problem", for what is the matter on this rank alone: recorded as its
  // failure before a peer hears of it, or the peer would be blamed (declare_failure.h). Not where
  // the group was aborted before: what follows from a peer's failure is none of this rank's.
  [[noreturn]] void fail_alone(const Call& call, std::string_view problem);
  void require(bool condition, const Call& call, std::string_view problem) {
    if (!condition) fail_alone(call, problem);
  }

  // This thread is inside a call for as long as the object lives. What calls share has no lock, so
  // that no other thread may be in one (communicator.h): the second fails, as far as it is seen.
  class Inside {
   public:
    explicit Inside(CallGuard& guard);
    ~Inside() { guard_.occupied_.store(false, std::memory_order_relaxed); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    CallGuard& guard_;
  };

 private:
  [[noreturn]] void throw_aborted(const Call& call) const;
  std::string text_of(const Call& call, const std::string& reason) const;
  [[noreturn]] void fail_occupied();

  const int rank_;
  const int world_size_;
  Abortable& group_;
  std::uint32_t calls_ = 0;          // Collectives so far.
  std::vector<std::uint32_t> sent_;  // Messages so far, by peer ...
  std::vector<std::uint32_t> received_;
  // Relaxed, and no exchange: it must cost nothing, nor order what ThreadSanitizer should see as a
  // race.
  std::atomic<bool> occupied_{false};
};

}  // namespace ddprun::worker
