// A question to a job's coordinator by somebody who takes no part in the job: a connection for
// itself, with the same proof as an agent's.
//
// An agent asks like this, too, for people on its node: an answer of megabytes in its own control
// connection would hold up heartbeats and verdicts.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/control/control_message.h"
#include "rendezvous/secure/tls_context.h"

namespace ddprun::rendezvous {

struct QueryAnswer {
  std::optional<std::string> text;  // A JSON object. Else one of these says why there is none:
  std::optional<Refused> refused;   // The job does not answer us; `reason` lacks the address.
  std::optional<Seat> moved;        // Another node coordinates the job; "" = it is not known there.
  std::string why;                  // Nobody answers as a ddprun would.
  bool nobody_listens = false;      // That is why.
};

// Asks at `address` (numeric), and calls `done` once, from the loop, after `limit` at the latest.
// With `tls` both ends prove the job's key first. Lives by itself until then; `io` must outlive it,
// and what `done` refers to, too.
void query_coordinator(asio::io_context& io, const std::string& address, std::uint16_t port,
                       const Query& query, std::shared_ptr<const TlsContext> tls,
                       std::chrono::milliseconds limit,
                       std::function<void(const QueryAnswer& answer)> done);

}  // namespace ddprun::rendezvous
