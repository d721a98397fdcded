// Where a launcher answers who asks where its job stands: one line of JSON, {"ask": "snapshot"},
// with "rank" and "lines" where they limit it, and one line comes back. Served by the agent's loop,
// between two events of the job.
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {

class StatusSocket {
 public:
  using Reply = std::function<void(const std::string& line)>;
  // The request's "ask" is `what`. The reply may be given later, in the loop's thread, and also
  // when nobody waits for it any more.
  using Answer = std::function<void(const rendezvous::Query& query, Reply reply)>;

  StatusSocket(asio::io_context& io, Answer answer);
  ~StatusSocket();  // Removes the socket, and the folder when no other launcher uses it.
  StatusSocket(const StatusSocket&) = delete;

  // In the first of these folders that will have it. Returns "", or why none would: then nobody can
  // ask, and nothing else is lost.
  std::string open(const std::vector<std::string>& folders);

  std::string path() const;  // "" = it is not open.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::launcher
