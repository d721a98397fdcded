// One question to another launcher, and its answer, over a connection of their own: the same proof
// as an agent's, but nobody is joined, and nothing else waits behind a long answer.
//
// Bounded in time and bytes: what listens at the address may be anything.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/control/control_connection.h"
#include "rendezvous/control/control_message.h"
#include "rendezvous/secure/tls_context.h"

namespace ddprun::rendezvous {

struct ControlQuestion {
  ControlMessage ask;
  std::shared_ptr<const TlsContext> tls;  // With it both ends prove the job's key first.
  std::chrono::milliseconds limit;
  std::size_t answer_bytes_max = 0;  // With those of the TLS handshake.
};

struct QuestionEnd {
  std::string why;  // "" = the answer is whole.
  TlsFailure tls = TlsFailure::None;
  bool nobody_listens = false;  // The host is there, and refuses the connection.
};

// `hear` gets each message of the answer and returns whether that was the last one; then, or when
// nothing more will come, `done` is called once, from the loop. Lives by itself until then; `io`
// must outlive it, and what both refer to, too.
void put_question(asio::io_context& io, const asio::ip::tcp::endpoint& to, ControlQuestion question,
                  std::function<bool(const ControlMessage&)> hear,
                  std::function<void(const QuestionEnd&)> done);

}  // namespace ddprun::rendezvous
