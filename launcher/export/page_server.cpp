// Whoever reaches the port can ask: requests have a size, connections a number and a time.
#include "launcher/export/page_server.h"

#include <fmt/format.h>

#include <asio/ip/tcp.hpp>
#include <asio/read_until.hpp>
#include <asio/steady_timer.hpp>
#include <asio/streambuf.hpp>
#include <asio/write.hpp>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace ddprun::launcher {
namespace {

using asio::ip::tcp;

constexpr std::size_t http_request_bytes_max = 16 << 10;
constexpr int visitors_max = 32;
constexpr std::chrono::seconds visitor_limit{20};
constexpr std::chrono::milliseconds accept_pause{200};

}  // namespace

struct PageServer::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io, PageLookup to_look)
      : acceptor(io), pause(io), lookup(std::move(to_look)) {}

  void accept();
  void accept_later();

  tcp::acceptor acceptor;
  asio::steady_timer pause;
  PageLookup lookup;
  bool loopback = true;
  int visitors = 0;
  bool closed = false;
};

// One connection: a request, its answer, the end.
struct PageServer::Visitor : std::enable_shared_from_this<Visitor> {
  Visitor(tcp::socket connection, std::shared_ptr<Impl> of)
      : owner(std::move(of)),
        socket(std::move(connection)),
        limit(socket.get_executor()),
        received(http_request_bytes_max) {
    ++owner->visitors;
  }
  ~Visitor() { --owner->visitors; }

  void serve() {
    limit.expires_after(visitor_limit);
    limit.async_wait([self = shared_from_this()](const asio::error_code& error) {
      asio::error_code ignored;
      if (!error) self->socket.close(ignored);
    });
    asio::async_read_until(
        socket, received, "\r\n\r\n",
        [self = shared_from_this()](const asio::error_code& error, std::size_t bytes) {
          if (error || self->owner->closed) return self->end();
          self->answer(bytes);
        });
  }

  void answer(std::size_t bytes) {
    const auto data = received.data();
    const std::string request(asio::buffers_begin(data),
                              asio::buffers_begin(data) + static_cast<std::ptrdiff_t>(bytes));
    text = http_reply(request, owner->loopback, owner->lookup);
    asio::async_write(
        socket, asio::buffer(text),
        [self = shared_from_this()](const asio::error_code&, std::size_t) { self->end(); });
  }

  void end() {
    limit.cancel();
    asio::error_code ignored;
    socket.shutdown(tcp::socket::shutdown_send, ignored);
    socket.close(ignored);
  }

  std::shared_ptr<Impl> owner;
  tcp::socket socket;
  asio::steady_timer limit;
  asio::streambuf received;
  std::string text;
};

void PageServer::Impl::accept() {
  acceptor.async_accept(
      [self = shared_from_this()](const asio::error_code& error, tcp::socket socket) {
        if (self->closed) return;
        // Without a descriptor the same error would come again at once.
        if (error) return self->accept_later();
        if (self->visitors < visitors_max) {
          std::make_shared<Visitor>(std::move(socket), self)->serve();
        }
        self->accept();
      });
}

void PageServer::Impl::accept_later() {
  pause.expires_after(accept_pause);
  pause.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (!error && !self->closed) self->accept();
  });
}

PageServer::PageServer(asio::io_context& io, const std::string& host, std::uint16_t port,
                       const std::string& option, PageLookup lookup)
    : impl_(std::make_shared<Impl>(io, std::move(lookup))) {
  asio::error_code error;
  const tcp::endpoint place(asio::ip::make_address(host, error), port);
  if (!error) impl_->acceptor.open(place.protocol(), error);
  if (!error) impl_->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) impl_->acceptor.bind(place, error);
  if (!error) impl_->acceptor.listen(visitors_max, error);
  if (error) {
    throw std::runtime_error(
        fmt::format("{}: cannot listen on {} port {}: {}; give another port, "
                    "or 0 for a free one",
                    option, host, port, error.message()));
  }
  impl_->loopback = place.address().is_loopback();
  impl_->accept();
}

PageServer::~PageServer() {
  impl_->closed = true;
  asio::error_code ignored;
  impl_->acceptor.close(ignored);
  impl_->pause.cancel();
}

std::string PageServer::url() const {
  const tcp::endpoint place = impl_->acceptor.local_endpoint();
  const std::string host = place.address().to_string();
  return fmt::format("http://{}:{}", place.address().is_v6() ? "[" + host + "]" : host,
                     place.port());
}

}  // namespace ddprun::launcher
