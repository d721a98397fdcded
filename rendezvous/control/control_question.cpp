// The wait for its limit holds it, until the end: that limit, the last message, or the end of the
// connection, whichever comes first. A loop that is left before goes with that wait, and so with
// it.
#include "rendezvous/control/control_question.h"

#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <string_view>
#include <utility>

#include "rendezvous/time_text.h"

namespace ddprun::rendezvous {
namespace {

class OpenQuestion : public std::enable_shared_from_this<OpenQuestion> {
 public:
  OpenQuestion(asio::io_context& io, ControlQuestion question,
               std::function<bool(const ControlMessage&)> hear,
               std::function<void(const QuestionEnd&)> done)
      : io_(io),
        socket_(io),
        timer_(io, question.limit),
        question_(std::move(question)),
        hear_(std::move(hear)),
        done_(std::move(done)) {}

  void put_to(const asio::ip::tcp::endpoint& to) {
    timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->end({.why = "no answer for " + time_text(self->question_.limit)});
    });
    socket_.async_connect(to, [self = shared_from_this()](const asio::error_code& error) {
      if (self->over_) return;
      // The kernel's words for it, without the number that asio adds.
      if (error == asio::error::connection_refused) {
        return self->end({.why = "connection refused", .nobody_listens = true});
      }
      if (error) return self->end({.why = error.message()});
      self->ask();
    });
  }

 private:
  void ask() {
    std::unique_ptr<TlsSession> session;
    if (question_.tls) {
      session = std::make_unique<TlsSession>(question_.tls, TlsSession::Role::Client);
    }
    connection_ = std::make_shared<ControlConnection>(std::move(socket_), "", std::move(session));
    connection_->limit_input(question_.answer_bytes_max);
    // It is ours: callbacks that held us would make a circle.
    connection_->start(
        [weak = weak_from_this()](std::string_view line) {
          if (const auto self = weak.lock()) self->hear(line);
        },
        [weak = weak_from_this()](const std::string& why) {
          if (const auto self = weak.lock()) self->closed(why);
        });
    connection_->send(question_.ask);
  }

  void hear(std::string_view line) {
    if (over_) return;
    const ParsedLine parsed = parse_control_message(line);
    if (!parsed.message) return end({.why = "it sent a bad line: " + parsed.error});
    if (hear_(*parsed.message)) end({});
  }

  void closed(const std::string& why) {
    if (over_) return;
    end({.why = why + " before it answered; an older ddprun, or another program, listens there",
         .tls = connection_->tls_failure()});
  }

  void end(const QuestionEnd& end) {
    if (std::exchange(over_, true)) return;
    timer_.cancel();
    asio::error_code ignored;
    socket_.close(ignored);
    if (connection_) connection_->close();
    // Later: one of the connection's callbacks may be running.
    asio::post(io_, [self = shared_from_this(), end] {
      self->connection_.reset();
      std::exchange(self->done_, nullptr)(end);
    });
  }

  asio::io_context& io_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  const ControlQuestion question_;
  std::function<bool(const ControlMessage&)> hear_;
  std::function<void(const QuestionEnd&)> done_;
  std::shared_ptr<ControlConnection> connection_;
  bool over_ = false;
};

}  // namespace

void put_question(asio::io_context& io, const asio::ip::tcp::endpoint& to, ControlQuestion question,
                  std::function<bool(const ControlMessage&)> hear,
                  std::function<void(const QuestionEnd&)> done) {
  std::make_shared<OpenQuestion>(io, std::move(question), std::move(hear), std::move(done))
      ->put_to(to);
}

}  // namespace ddprun::rendezvous
