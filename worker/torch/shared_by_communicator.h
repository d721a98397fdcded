// What there must be one of for each communicator, found by whoever uses the communicator.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "worker/communicator.h"

namespace ddprun::worker {

// The T of this communicator, from `make` when nobody holds one. It lives as long as its holders;
// what they keep of a communicator that is gone is not given to another one at its address.
template <class T, class Make>
std::shared_ptr<T> shared_by_communicator(const Communicator& communicator, const Make& make) {
  using Life = std::weak_ptr<const void>;
  // Never destroyed: a global object may still use a communicator when the process exits.
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<Life, std::weak_ptr<T>, std::owner_less<Life>>;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<T> shared = known[communicator.life()].lock();
  if (!shared) {
    shared = make();
    known[communicator.life()] = shared;
  }
  return shared;
}

}  // namespace ddprun::worker
