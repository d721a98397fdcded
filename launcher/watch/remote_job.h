// The asking side of a job on other hosts, for programs without an event loop: its coordinator is
// asked at the port where the nodes meet.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "launcher/watch/watch_command.h"
#include "rendezvous/control/control_message.h"
#include "rendezvous/control/job_query.h"
#include "rendezvous/secure/tls_context.h"

namespace ddprun::launcher {

// The job does not answer: the message says who was asked, and what to do.
class RemoteJobError : public std::runtime_error {
 public:
  RemoteJobError(int status, const std::string& text, bool nobody_listens = false)
      : std::runtime_error(text), status_(status), nobody_listens_(nobody_listens) {}
  int status() const { return status_; }
  bool nobody_listens() const { return nobody_listens_; }  // Nor does another node know the job.

 private:
  int status_;
  bool nobody_listens_;
};

class RemoteJob {
 public:
  struct Place {
    std::string host;
    std::uint16_t port = 0;
  };

  // Reads the secret, where one is needed. Throws RemoteJobError.
  explicit RemoteJob(const WatchCommand& command);

  // Who else may know, should its coordinator be gone: the nodes that could take its place.
  void set_others(std::vector<Place> others) { others_ = std::move(others); }

  // A JSON object. Throws RemoteJobError.
  std::string ask(rendezvous::Query query, std::chrono::milliseconds limit);

  std::string name() const;  // HOST:PORT of the coordinator.

 private:
  void read_key();
  std::string run_id() const;
  rendezvous::QueryAnswer follow(Place& place, const rendezvous::Query& query,
                                 std::chrono::milliseconds limit) const;
  std::optional<std::string> ask_others(const rendezvous::Query& query,
                                        std::chrono::milliseconds limit, bool& job_lives);
  [[noreturn]] void give_up(const rendezvous::QueryAnswer& answer, bool job_lives) const;

  WatchCommand command_;
  Place place_;  // Of the coordinator, which may move.
  std::vector<Place> others_;
  std::size_t next_other_ = 0;
  std::shared_ptr<const rendezvous::TlsContext> tls_;  // Null: nothing is proved.
};

}  // namespace ddprun::launcher
