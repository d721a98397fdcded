// Who does not answer is no error here: agents ask those of whom they do not know whether they
// live, and go on with the answers that come.
#include "rendezvous/control/vote_question.h"

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "rendezvous/control/control_question.h"
#include "rendezvous/control/resolve.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::chrono::seconds vote_limit{2};
constexpr std::size_t vote_bytes_max = 16u << 10;  // With those of the TLS handshake.

// Of one seat, which may have several addresses.
struct Asked {
  std::function<void(const Vote&)> on_vote;
  bool answered = false;
};

void ask_at(asio::io_context& io, const asio::ip::tcp::endpoint& place,
            const ControlMessage& question, const std::shared_ptr<const TlsContext>& tls,
            const std::shared_ptr<Asked>& asked) {
  const auto vote = std::make_shared<std::optional<Vote>>();
  put_question(
      io, place,
      {.ask = question, .tls = tls, .limit = vote_limit, .answer_bytes_max = vote_bytes_max},
      [vote](const ControlMessage& message) {
        if (const auto* said = std::get_if<Vote>(&message)) *vote = *said;
        return true;  // Whatever it is: nobody says two things to this question.
      },
      [vote, asked](const QuestionEnd&) {
        if (*vote && !std::exchange(asked->answered, true)) asked->on_vote(**vote);
      });
}

asio::awaitable<void> ask_by_name(asio::io_context& io, Seat seat, ControlMessage question,
                                  std::shared_ptr<const TlsContext> tls,
                                  std::shared_ptr<Asked> asked,
                                  std::function<void(const std::string& why)> on_unknown) {
  const auto until = std::chrono::steady_clock::now() + vote_limit;
  const Resolved resolved = co_await resolve(seat.address);
  if (!resolved.error.empty() && on_unknown) on_unknown(resolved.error);
  // Whoever asked has asked again by now, or gone on without.
  if (std::chrono::steady_clock::now() > until) co_return;
  for (const std::string& address : resolved.addresses) {
    asio::error_code error;
    const auto parsed = asio::ip::make_address(address, error);
    const asio::ip::tcp::endpoint place(parsed, static_cast<std::uint16_t>(seat.port));
    if (!error) ask_at(io, place, question, tls, asked);
  }
}

}  // namespace

void ask_for_vote(asio::io_context& io, const Seat& seat, const ControlMessage& question,
                  const std::shared_ptr<const TlsContext>& tls,
                  std::function<void(const Vote& vote)> on_vote,
                  std::function<void(const std::string& why)> on_unknown) {
  if (seat.port == 0) return;
  const auto asked = std::make_shared<Asked>(Asked{.on_vote = std::move(on_vote)});
  asio::error_code error;
  const auto address = asio::ip::make_address(seat.address, error);
  if (!error) {
    ask_at(io, {address, static_cast<std::uint16_t>(seat.port)}, question, tls, asked);
    return;
  }
  asio::co_spawn(io, ask_by_name(io, seat, question, tls, asked, std::move(on_unknown)),
                 [](const std::exception_ptr&) {});  // Asked again, as one that does not answer.
}

}  // namespace ddprun::rendezvous
