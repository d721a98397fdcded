// Where a launcher answers who asks where its job stands: one line of JSON, {"ask": "snapshot"},
// with "rank" and "lines" where they limit it, and one line comes back. Served by the agent's loop,
// between two events of the job.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/status/run_socket.h"
#include "rendezvous/control/control_message.h"

namespace ddprun::launcher {

class StatusSocket {
 public:
  using Reply = std::function<void(const std::string& line)>;
  // The request's "ask" is `what`. The reply may be given later, in the loop's thread, and also
  // when nobody waits for it any more.
  using Answer = std::function<void(const rendezvous::Query& query, Reply reply)>;

  // `look_every`: for how long at most nobody finds a job whose socket's name was removed.
  StatusSocket(asio::io_context& io, Answer answer,
               std::chrono::milliseconds look_every = std::chrono::seconds(5));
  ~StatusSocket();
  StatusSocket(const StatusSocket&) = delete;

  // A socket that it can serve. Needs no loop. Throws as RunSocket does.
  static std::unique_ptr<RunSocket> socket_in(const std::vector<std::string>& folders);

  // Serves this one, in the place of the one before. `on_gone` comes from the loop, once, when
  // somebody else has removed its name: nobody finds it any more.
  void serve(std::unique_ptr<RunSocket> socket, std::function<void()> on_gone);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::launcher
