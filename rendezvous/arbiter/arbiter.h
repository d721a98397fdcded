// An arbiter as claims.h describes it, wherever it is. Every call may block, for as long as a file
// system may; whoever must not wait calls from a thread of its own
// (launcher/membership/word_seeker.h).
#pragma once

#include <stdexcept>
#include <string>

#include "rendezvous/arbiter/claims.h"

namespace ddprun::rendezvous {

// What was tried, on what, what came of it, and what to do.
class ArbiterError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Arbiter {
 public:
  virtual ~Arbiter() = default;

  // `job` is the random name of this one job: what others of the same run id have left counts for
  // nothing. Before a job is founded, and after it was forgotten, nobody gets a word in it. All
  // throw ArbiterError.
  virtual void found(const std::string& job) = 0;
  virtual bool knows(const std::string& job) = 0;
  virtual Claims carry_out(const std::string& job, const std::string& node_id,
                           const ArbiterTask& task) = 0;
  virtual void forget(const std::string& job) = 0;  // And all that was claimed in it.

  virtual std::string name() const = 0;  // For people: "--tie-breaker /shared/tie".
};

}  // namespace ddprun::rendezvous
