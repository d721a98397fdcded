// Which process an object was made in. A child that was forked has a copy of it and none of its
// threads: what that would write to a peer, to a launcher or into memory that is shared would be
// taken for its parent's. So a copy only goes, and leaves all of that alone.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace ddprun::worker {

class OwningProcess {
 public:
  bool is_this() const noexcept { return ::getpid() == pid_; }

 private:
  pid_t pid_ = ::getpid();
};

// In a child: a thread that the parent has. It can be neither joined nor, since what described it
// may be gone, detached.
inline void leave_to_parent(std::thread& thread) {
  static std::mutex mutex;
  static auto* const left = new std::vector<std::thread>;
  const std::lock_guard lock(mutex);
  left->push_back(std::move(thread));
}

// In a child: where a thread of the parent's waited, the destructor would wait for that one.
inline void leave_to_parent(std::condition_variable& condition) {
  new (&condition) std::condition_variable;
}

}  // namespace ddprun::worker
