// Who does not answer is no error here: agents ask those of whom they do not know whether they
// live, and go on with the answers that come.
#include "rendezvous/control/vote_question.h"

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/control/control_connection.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::chrono::seconds vote_limit{2};
constexpr std::size_t answer_bytes_max = 16u << 10;  // With those of the TLS handshake.

class VoteQuestion : public std::enable_shared_from_this<VoteQuestion> {
 public:
  VoteQuestion(asio::io_context& io, ControlMessage ask, std::shared_ptr<const TlsContext> tls,
               std::function<void(const Vote&)> on_vote)
      : socket_(io),
        limit_(io, vote_limit),
        ask_(std::move(ask)),
        tls_(std::move(tls)),
        on_vote_(std::move(on_vote)) {}

  void put_to(const asio::ip::tcp::endpoint& to) {
    limit_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->end();
    });
    socket_.async_connect(to, [self = shared_from_this()](const asio::error_code& error) {
      if (error || self->over_) return self->end();
      self->ask();
    });
  }

 private:
  void ask() {
    std::unique_ptr<TlsSession> session;
    if (tls_) session = std::make_unique<TlsSession>(tls_, TlsSession::Role::Client);
    connection_ = std::make_shared<ControlConnection>(std::move(socket_), "", std::move(session));
    connection_->limit_input(answer_bytes_max);
    connection_->start([self = shared_from_this()](std::string_view line) { self->hear(line); },
                       [self = shared_from_this()](const std::string&) { self->end(); });
    connection_->send(ask_);
  }

  void hear(std::string_view line) {
    const ParsedLine parsed = parse_control_message(line);
    const auto on_vote = std::move(on_vote_);
    const bool first = !over_;
    end();
    if (!first || !parsed.message) return;
    if (const auto* vote = std::get_if<Vote>(&*parsed.message)) on_vote(*vote);
  }

  void end() {
    over_ = true;
    limit_.cancel();
    asio::error_code ignored;
    socket_.close(ignored);
    if (connection_) connection_->close();
    connection_.reset();  // Its callbacks hold us.
  }

  asio::ip::tcp::socket socket_;
  asio::steady_timer limit_;
  ControlMessage ask_;
  std::shared_ptr<const TlsContext> tls_;
  std::function<void(const Vote&)> on_vote_;
  std::shared_ptr<ControlConnection> connection_;
  bool over_ = false;
};

}  // namespace

void ask_for_vote(asio::io_context& io, const Seat& seat, const ControlMessage& question,
                  const std::shared_ptr<const TlsContext>& tls,
                  std::function<void(const Vote& vote)> on_vote) {
  // Seats hold what the coordinator saw or what was announced with --local-addr; a name among them
  // is not looked up, since that can take longer than all of this.
  asio::error_code error;
  const auto address = asio::ip::make_address(seat.address, error);
  if (error || seat.port == 0) return;
  std::make_shared<VoteQuestion>(io, question, tls, std::move(on_vote))
      ->put_to({address, static_cast<std::uint16_t>(seat.port)});
}

}  // namespace ddprun::rendezvous
