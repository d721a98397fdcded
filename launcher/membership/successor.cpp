// The shell of the election. Answers and ticks come from the event loop, never from inside a call,
// so that a callback may put an end to this object.
#include "launcher/membership/successor.h"

#include <spdlog/spdlog.h>

#include <asio/post.hpp>
#include <chrono>
#include <utility>
#include <variant>

#include "rendezvous/control/vote_question.h"

namespace ddprun::launcher {

using Clock = std::chrono::steady_clock;

Successor::Successor(asio::io_context& io, const std::string& run_id, const std::string& node_id,
                     const rendezvous::TakeoverLimits& limits,
                     std::shared_ptr<const rendezvous::TlsContext> tls,
                     SuccessorCallbacks callbacks)
    : io_(io),
      tls_(std::move(tls)),
      callbacks_(std::move(callbacks)),
      core_(run_id, node_id, limits),
      timer_(io) {}

void Successor::on_word(const rendezvous::Word& word) {
  carry_out(core_.on_word(word, Clock::now()));
}

void Successor::coordinator_lost() { carry_out(core_.coordinator_lost(Clock::now())); }

void Successor::coordinator_hands_over() { carry_out(core_.coordinator_hands_over(Clock::now())); }

rendezvous::Vote Successor::on_ask(const rendezvous::AskVote& ask) {
  const rendezvous::Vote vote = core_.on_ask(ask, Clock::now());
  if (vote.granted) {
    spdlog::debug("this node's vote of term {} is for {}", vote.term, ask.candidate);
  }
  return vote;
}

// What any other agent could have told that was asked.
void Successor::on_leads(const rendezvous::Leads& leads) {
  carry_out(core_.on_vote(
      "", {.term = leads.term, .granted = false, .coordinator = leads.coordinator}, Clock::now()));
}

void Successor::carry_out(const rendezvous::TakeoverActions& actions) {
  for (const rendezvous::TakeoverAction& action : actions) {
    if (const auto* question = std::get_if<rendezvous::AskSeat>(&action)) {
      ask(*question);
    } else if (const auto* wanted = std::get_if<rendezvous::AskArbiter>(&action)) {
      callbacks_.on_word_wanted(wanted->wish);
    } else if (std::holds_alternative<rendezvous::StopAsking>(action)) {
      callbacks_.on_word_wanted({});
    } else if (const auto* lead = std::get_if<rendezvous::Lead>(&action)) {
      // Posted, as the two below: what follows may make another successor, and this one is still at
      // work.
      asio::post(io_, [this, weak = std::weak_ptr(alive_), lead = *lead] {
        if (weak.lock()) callbacks_.on_lead(lead);
      });
    } else if (const auto* follow = std::get_if<rendezvous::Follow>(&action)) {
      asio::post(io_, [this, weak = std::weak_ptr(alive_), seat = follow->coordinator] {
        if (weak.lock()) callbacks_.on_follow(seat);
      });
    } else if (const auto* end = std::get_if<rendezvous::GiveUp>(&action)) {
      asio::post(io_, [this, weak = std::weak_ptr(alive_), end = *end] {
        if (weak.lock()) callbacks_.on_give_up(end);
      });
    }
  }
  wait();
}

void Successor::ask(const rendezvous::AskSeat& question) {
  rendezvous::ask_for_vote(
      io_, question.seat, question.ask, tls_,
      [this, weak = std::weak_ptr(alive_),
       from = question.seat.node_id](const rendezvous::Vote& vote) {
        if (weak.lock()) carry_out(core_.on_vote(from, vote, Clock::now()));
      },
      [this, weak = std::weak_ptr(alive_), seat = question.seat](const std::string& why) {
        // It is asked again and again, and told of once.
        if (!weak.lock() || !unknown_.insert(seat.node_id).second) return;
        spdlog::warn("node {} ({}) cannot be asked who goes on: cannot resolve \"{}\": {}",
                     seat.group_rank, seat.host, seat.address, why);
      });
}

void Successor::wait() {
  timer_.cancel();
  const auto next = core_.next_tick();
  if (!next) return;
  timer_.expires_at(*next);
  timer_.async_wait([this, weak = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (weak.lock() && !error) carry_out(core_.on_tick(Clock::now()));
  });
}

}  // namespace ddprun::launcher
