// One budget of memory for everything that clients can make the store hold: keys, values, parked
// waits, half-received commands, unread replies. A refusal costs the asker its connection, which
// is better than the job's coordinator being killed for memory.
#pragma once

#include <cstddef>

namespace ddprun::rendezvous {

class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  // False: nothing was taken.
  bool take(std::size_t bytes) {
    if (bytes > bytes_max_ - used_) return false;
    used_ += bytes;
    return true;
  }
  void give(std::size_t bytes) { used_ -= bytes; }
  // From `before` to `after` bytes; false: still `before`.
  bool change(std::size_t before, std::size_t after) {
    if (after > before) return take(after - before);
    give(before - after);
    return true;
  }

  std::size_t used() const { return used_; }
  std::size_t bytes_max() const { return bytes_max_; }

 private:
  std::size_t bytes_max_;
  std::size_t used_ = 0;  // At most bytes_max_.
};

}  // namespace ddprun::rendezvous
