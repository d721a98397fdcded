// Who does not answer is no error here: agents ask those of whom they do not know whether they
// live, and go on with the answers that come.
#include "rendezvous/control/vote_question.h"

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "rendezvous/control/control_question.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::chrono::seconds vote_limit{2};
constexpr std::size_t vote_bytes_max = 16u << 10;  // With those of the TLS handshake.

}  // namespace

void ask_for_vote(asio::io_context& io, const Seat& seat, const ControlMessage& question,
                  const std::shared_ptr<const TlsContext>& tls,
                  std::function<void(const Vote& vote)> on_vote) {
  // Seats hold what the coordinator saw or what was announced with --local-addr; a name among them
  // is not looked up, since that can take longer than all of this.
  asio::error_code error;
  const auto address = asio::ip::make_address(seat.address, error);
  if (error || seat.port == 0) return;
  const auto vote = std::make_shared<std::optional<Vote>>();
  put_question(
      io, {address, static_cast<std::uint16_t>(seat.port)},
      {.ask = question, .tls = tls, .limit = vote_limit, .answer_bytes_max = vote_bytes_max},
      [vote](const ControlMessage& message) {
        if (const auto* said = std::get_if<Vote>(&message)) *vote = *said;
        return true;  // Whatever it is: nobody says two things to this question.
      },
      [vote, on_vote = std::move(on_vote)](const QuestionEnd&) {
        if (*vote) on_vote(**vote);
      });
}

}  // namespace ddprun::rendezvous
