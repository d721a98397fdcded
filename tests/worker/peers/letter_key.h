// Keys that tests tell apart at a glance.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/worker_key.h"

namespace ddprun::worker {

using Key = std::shared_ptr<const rendezvous::WorkerKey>;

inline Key key_of(char letter) {
  return std::make_shared<rendezvous::WorkerKey>(
      rendezvous::SecretBytes::copy_of(std::string(32, letter)));
}

}  // namespace ddprun::worker
