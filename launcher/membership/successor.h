// This node's part in finding a new coordinator when the job's is lost: the timers and questions
// around rendezvous::Takeover, which decides.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "rendezvous/control/control_message.h"
#include "rendezvous/secure/tls_context.h"
#include "rendezvous/takeover/takeover.h"

namespace ddprun::launcher {

struct SuccessorCallbacks {
  // This node is the coordinator from here on.
  std::function<void(const rendezvous::Lead& elected)> on_lead;
  std::function<void(const rendezvous::Seat& coordinator)> on_follow;
  // There will be none that this node could follow, for the reason that it says.
  std::function<void(const rendezvous::GiveUp& end)> on_give_up;
  // The arbiter's word is wanted, which on_word() takes; nothing: not any more.
  std::function<void(const std::optional<rendezvous::WordWish>& wish)> on_word_wanted;
};

// Lives on the agent's io_context, in its thread; callbacks come from there.
class Successor {
 public:
  // `tls` as ControlClientOptions have it. `io` must outlive it.
  Successor(asio::io_context& io, const std::string& run_id, const std::string& node_id,
            const rendezvous::TakeoverLimits& limits,
            std::shared_ptr<const rendezvous::TlsContext> tls, SuccessorCallbacks callbacks);

  void leads() { core_.leads(); }
  void heard(const rendezvous::Succession& succession) { core_.heard(succession); }
  void coordinator_lost();
  void coordinator_hands_over();
  void on_word(const rendezvous::Word& word);
  rendezvous::Vote on_ask(const rendezvous::AskVote& ask);
  void on_leads(const rendezvous::Leads& leads);

 private:
  void carry_out(const rendezvous::TakeoverActions& actions);
  void ask(const rendezvous::AskSeat& question);
  void wait();

  asio::io_context& io_;
  std::shared_ptr<const rendezvous::TlsContext> tls_;
  SuccessorCallbacks callbacks_;
  rendezvous::Takeover core_;
  asio::steady_timer timer_;
  std::set<std::string> unknown_;  // node_id of those whose names cannot be looked up, once told.
  // Answers may come when this is gone.
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace ddprun::launcher
