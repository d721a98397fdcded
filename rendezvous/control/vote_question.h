// One question (ask) or word (leads) to another agent, and its answer: a connection for itself.
//
// Agents keep no connections to each other while the coordinator lives: a job of N nodes would have
// N times fifteen of them, each with heartbeats, for a moment that hardly comes.
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <memory>

#include "rendezvous/control/control_message.h"
#include "rendezvous/secure/tls_context.h"

namespace ddprun::rendezvous {

// Asks `seat`, at each address of it where that is a name (--local-addr, or the endpoint as it was
// given); `on_vote` is called once if it answers within two seconds, and else never. With
// `tls` both ends prove the job's key first. Lives by itself until then; `io` must outlive it, and
// what `on_vote` refers to, too. `on_unknown`: the name cannot be looked up, and why.
void ask_for_vote(asio::io_context& io, const Seat& seat, const ControlMessage& question,
                  const std::shared_ptr<const TlsContext>& tls,
                  std::function<void(const Vote& vote)> on_vote,
                  std::function<void(const std::string& why)> on_unknown = {});

}  // namespace ddprun::rendezvous
