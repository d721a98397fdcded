// The asking side of a job on other hosts, for programs without an event loop: its coordinator is
// asked at the port where the nodes meet.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "launcher/watch/watch_command.h"
#include "rendezvous/control/control_message.h"
#include "rendezvous/secure/tls_context.h"

namespace ddprun::launcher {

// The job does not answer: the message says who was asked, and what to do.
class RemoteJobError : public std::runtime_error {
 public:
  RemoteJobError(int status, const std::string& text, bool nobody_listens = false)
      : std::runtime_error(text), status_(status), nobody_listens_(nobody_listens) {}
  int status() const { return status_; }
  bool nobody_listens() const { return nobody_listens_; }  // At none of its addresses.

 private:
  int status_;
  bool nobody_listens_;
};

class RemoteJob {
 public:
  // Reads the secret, where one is needed. Throws RemoteJobError.
  explicit RemoteJob(const WatchCommand& command);

  // A JSON object. Throws RemoteJobError.
  std::string ask(rendezvous::Query query, std::chrono::milliseconds limit);

  std::string name() const;  // HOST:PORT of the coordinator.

 private:
  void read_key();

  WatchCommand command_;
  std::string host_;  // Of the coordinator, which may move.
  std::uint16_t port_;
  std::shared_ptr<const rendezvous::TlsContext> tls_;  // Null: nothing is proved.
};

}  // namespace ddprun::launcher
