// This node's dealings with the job's arbiter: the calls and the clock around rendezvous::Claimant,
// which decides what is asked and what the answers mean.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>

#include "launcher/membership/calls_in_turn.h"
#include "rendezvous/arbiter/arbiter.h"
#include "rendezvous/arbiter/claimant.h"

namespace ddprun::launcher {

struct WordSeekerLimits {
  rendezvous::ClaimLimits claims;
  std::chrono::milliseconds answer{5'000};  // Of one call.
  std::chrono::milliseconds agree{
      15'000};  // For a file that another node has made to be seen here.
};

// Lives on the agent's io_context, in its thread; callbacks come from there.
class WordSeeker {
 public:
  using OnWord = std::function<void(const rendezvous::Word& word)>;
  using Done = CallsInTurn::Done;

  // `io` must outlive it.
  WordSeeker(asio::io_context& io, std::shared_ptr<rendezvous::Arbiter> arbiter,
             const WordSeekerLimits& limits, OnWord on_word);

  // Once, and one of the two: makes the job known to the arbiter, or sees that this node's arbiter
  // is the one where another node has done so.
  void found(const std::string& job, Done done);
  void join(const std::string& job, Done done);

  void want(rendezvous::WordWish wish, rendezvous::Seat self);
  void drop();
  // The job is over. Nothing else may follow, but to join another one.
  void forget(Done done);

 private:
  void look_for_job(std::chrono::steady_clock::time_point until);
  void work();
  void wait();

  std::shared_ptr<rendezvous::Arbiter> arbiter_;
  WordSeekerLimits limits_;
  OnWord on_word_;
  std::string job_;
  Done joined_;
  std::string node_id_;
  rendezvous::Claimant core_;
  asio::steady_timer timer_;       // Of the core.
  asio::steady_timer look_again_;  // For the job.
  CallsInTurn calls_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace ddprun::launcher
