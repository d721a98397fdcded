// The arbiter that this node was given (--tie-breaker, or the etcd in which the nodes meet), and
// whether it is that of its job: two files of one name, or two etcds, would each give the job away.
//
// The node that opens the endpoint founds the job there; any other one hears the job's name from
// its coordinator, and acts on nothing that follows before its own arbiter has proved to know it.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/membership/word_seeker.h"
#include "launcher/options/launch_options.h"
#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {

// How messages call the etcd of these options.
std::string etcd_name(const LaunchOptions& options);

struct JobArbiterCallbacks {
  WordSeeker::OnWord on_word;
  // What was held back, in its order, once the arbiter has proved to be the job's ...
  std::function<void(const rendezvous::ControlMessage& message)> on_message;
  // ... or why it is not.
  std::function<void(const std::string& why)> on_another;
};

// Lives on the agent's io_context, in its thread; callbacks come from there.
class JobArbiter {
 public:
  // The references must outlive it.
  JobArbiter(asio::io_context& io, const LaunchOptions& options, JobArbiterCallbacks callbacks);

  // Once, before all else, where the options name one.
  void open();

  // The job's name there; "" = not known yet, or the coordinator has no arbiter.
  const std::string& job() const { return job_; }

  // Before the port is open: no node may be told the name of a job that the arbiter does not know.
  // Why it could not be; "" = it is, or there is no arbiter.
  asio::awaitable<std::string> found();
  // An agent of this machine had the port first, and a job of its own.
  asio::awaitable<void> leave_to_another();

  // A coordinator, which is another node, names the job. The first time counts.
  void heard_of(const std::string& job);
  // Kept for later, as long as it is not known whose arbiter this is.
  bool holds_back(const rendezvous::ControlMessage& message);
  // To a coordinator, anew. What the connection before has said, of a round that may be over by
  // now, is not kept for later any more.
  void connects() { unheard_.clear(); }

  void want(const rendezvous::WordWish& wish, const rendezvous::Seat& self);
  void drop();
  // The job is over: its files go. Nothing else may follow, but to hear of another one.
  void forget(WordSeeker::Done done);

 private:
  asio::io_context& io_;
  const LaunchOptions& options_;
  JobArbiterCallbacks callbacks_;
  std::unique_ptr<WordSeeker> words_;  // Null: there is none.
  std::string job_;
  bool asked_ = false;     // It has been asked where another node has the job ...
  bool sees_job_ = false;  // ... and answered. What came meanwhile:
  std::vector<rendezvous::ControlMessage> unheard_;
};

}  // namespace ddprun::launcher
