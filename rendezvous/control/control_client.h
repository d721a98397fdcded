// An agent's connection to the coordinator at the job's endpoint.
//
// Connects and tries again until it is answered or the join timeout has passed: nodes start in any
// order. Says in the log what it waits for. Once connected, exchanges messages and heartbeats and
// notices when the other side closes or falls silent. One thread; callbacks come from the event
// loop.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/control/control_message.h"
#include "rendezvous/secure/tls_context.h"

namespace ddprun::rendezvous {

struct ControlClientOptions {
  std::string host;  // A name or an address.
  std::uint16_t port = 0;
  std::string waiting_for;  // What answers there, for the log: "node 0".
  std::chrono::milliseconds join_timeout{600'000};
  Hello hello;  // Sent first; an empty address becomes that of the connection.
  // With it, both ends prove the job's key before anything is said. Null: plain lines.
  std::shared_ptr<const TlsContext> tls;
  std::string secret_advice;  // What to do when the other end has another key; for people.
};

struct ControlClientCallbacks {
  // A key that the other end does not have, or does not want, comes as `refused`.
  std::function<void(const ControlMessage&)> on_message;
  // Never connected within the join timeout, or never heard; `why` names the endpoint and the last
  // error.
  std::function<void(const std::string& why)> on_unreachable;
  // The connection was lost, or the other end does not speak our protocol.
  // `silent`: it did not close the connection but was not heard any more, so that it may be there
  // still, behind a cut.
  std::function<void(const std::string& why, bool silent)> on_lost;
  // Before each try: what the host is by now, which is looked up anew each time. True: no try is
  // made any more, since the owner does something else; no other callback comes.
  std::function<bool(const std::vector<std::string>& addresses)> on_addresses = {};
};

class ControlClient {
 public:
  // Starts at once. `io` must outlive the client.
  ControlClient(asio::io_context& io, ControlClientOptions options,
                ControlClientCallbacks callbacks);
  ~ControlClient();  // Closes the connection; no callback comes after it.

  void send(const ControlMessage& message);  // Ignored while not connected.
  bool connected() const;                    // And has said hello.
  // Where it is connected to, numeric; "" and 0: nowhere.
  std::string remote_address() const;
  std::uint16_t remote_port() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rendezvous
