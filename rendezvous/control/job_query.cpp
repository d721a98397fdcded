// Bounded in time and bytes: what listens at a port that somebody has typed may be anything.
#include "rendezvous/control/job_query.h"

#include <fmt/format.h>

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <string_view>
#include <utility>

#include "rendezvous/control/control_connection.h"
#include "rendezvous/time_text.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t query_answer_bytes_max = 8u << 20;  // As it comes, sealed and quoted.

class JobQuery : public std::enable_shared_from_this<JobQuery> {
 public:
  JobQuery(asio::io_context& io, Query query, std::shared_ptr<const TlsContext> tls,
           std::chrono::milliseconds limit, std::function<void(const QueryAnswer&)> done)
      : io_(io),
        socket_(io),
        timer_(io, limit),
        limit_(limit),
        query_(std::move(query)),
        tls_(std::move(tls)),
        done_(std::move(done)) {}

  void put_to(const std::string& address, std::uint16_t port) {
    asio::error_code error;
    const asio::ip::tcp::endpoint to(asio::ip::make_address(address, error), port);
    if (error) {
      return asio::post(io_, [self = shared_from_this()] { self->end({.why = "no address"}); });
    }
    timer_.async_wait([self = shared_from_this()](const asio::error_code& ended) {
      if (!ended) self->end({.why = "no answer for " + time_text(self->limit_)});
    });
    socket_.async_connect(to, [self = shared_from_this()](const asio::error_code& failed) {
      if (self->over_) return;
      if (failed == asio::error::connection_refused)
        return self->end({.why = "connection refused"});
      if (failed) return self->end({.why = failed.message()});
      self->ask();
    });
  }

 private:
  void ask() {
    std::unique_ptr<TlsSession> session;
    if (tls_) session = std::make_unique<TlsSession>(tls_, TlsSession::Role::Client);
    connection_ = std::make_shared<ControlConnection>(std::move(socket_), "", std::move(session));
    connection_->limit_input(query_answer_bytes_max);
    connection_->start([self = shared_from_this()](std::string_view line) { self->hear(line); },
                       [self = shared_from_this()](const std::string& why) { self->closed(why); });
    connection_->send(query_);
  }

  void hear(std::string_view line) {
    if (over_) return;
    ParsedLine parsed = parse_control_message(line);
    if (!parsed.message) return end({.why = "it sent a bad line: " + parsed.error});
    if (const auto* refused = std::get_if<Refused>(&*parsed.message)) {
      return end({.refused = *refused});
    }
    if (const auto* moved = std::get_if<Moved>(&*parsed.message)) {
      return end({.moved = moved->coordinator});
    }
    const auto* told = std::get_if<Told>(&*parsed.message);
    if (told == nullptr || told->number != query_.number) return;
    text_ += told->text;
    if (!told->more) end({.text = std::move(text_)});
  }

  void closed(const std::string& why) {
    if (over_) return;
    const TlsFailure failure = connection_->tls_failure();
    if (failure == TlsFailure::PlainPeer) {
      return end({.refused = Refused{.reason = "the job runs without a secret: give --auth none"}});
    }
    if (failure == TlsFailure::WrongKey) {
      return end({.refused = Refused{.reason = "this secret, or this job's id, is another one"}});
    }
    end({.why = why + " before it answered; an older ddprun, or another program, listens there"});
  }

  void end(const QueryAnswer& answer) {
    if (std::exchange(over_, true)) return;
    timer_.cancel();
    asio::error_code ignored;
    socket_.close(ignored);
    if (connection_) connection_->close();
    // Later: its callbacks hold us, and one of them may be running.
    asio::post(io_, [self = shared_from_this(), answer] {
      self->connection_.reset();
      std::exchange(self->done_, nullptr)(answer);
    });
  }

  asio::io_context& io_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  const std::chrono::milliseconds limit_;
  const Query query_;
  std::shared_ptr<const TlsContext> tls_;
  std::function<void(const QueryAnswer&)> done_;
  std::shared_ptr<ControlConnection> connection_;
  std::string text_;
  bool over_ = false;
};

}  // namespace

void query_coordinator(asio::io_context& io, const std::string& address, std::uint16_t port,
                       const Query& query, std::shared_ptr<const TlsContext> tls,
                       std::chrono::milliseconds limit,
                       std::function<void(const QueryAnswer& answer)> done) {
  std::make_shared<JobQuery>(io, query, std::move(tls), limit, std::move(done))
      ->put_to(address, port);
}

}  // namespace ddprun::rendezvous
