// What there must be one of for each communicator, found by whoever uses the communicator.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "worker/communicator.h"

namespace ddprun::worker {

// The T of this communicator, from `make` when nobody holds one. It lives as long as its holders,
// which must not outlive the communicator: another one may come to lie at the same address.
template <class T, class Make>
std::shared_ptr<T> shared_by_communicator(const Communicator& communicator, const Make& make) {
  static std::mutex mutex;
  static std::map<const Communicator*, std::weak_ptr<T>> known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<T> shared = known[&communicator].lock();
  if (!shared) {
    shared = make();
    known[&communicator] = shared;
  }
  return shared;
}

}  // namespace ddprun::worker
