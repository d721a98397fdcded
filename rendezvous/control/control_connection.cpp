// Lines over a socket, each way in order; what a line means is not known here.
#include "rendezvous/control/control_connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <asio/buffer.hpp>
#include <asio/post.hpp>
#include <asio/write.hpp>
#include <utility>

#include "rendezvous/host_and_port.h"
#include "rendezvous/store/unmapped_address.h"

namespace ddprun::rendezvous {

ControlConnection::ControlConnection(asio::ip::tcp::socket socket, std::string received,
                                     std::unique_ptr<TlsSession> tls)
    : socket_(std::move(socket)), tls_(std::move(tls)), received_(std::move(received)) {
  // A verdict is one small segment: it must not wait for the acknowledgement of the one before.
  asio::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void ControlConnection::start(OnLine on_line, OnClosed on_closed) {
  on_line_ = std::move(on_line);
  on_closed_ = std::move(on_closed);
  // Later, although lines may be here already: a callback must not come before start() returned.
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->take(std::exchange(self->received_, {}));
    self->read();
  });
}

void ControlConnection::send(const ControlMessage& message) {
  if (closing_ || closed_) return;
  if (!tls_) return queue(encode(message));
  tls_->send(encode(message));
  queue(tls_->take_to_send());  // Nothing, until the other side has proved the key.
}

void ControlConnection::queue(std::string bytes) {
  if (bytes.empty()) return;
  unsent_.push_back(std::move(bytes));
  unsent_bytes_ += unsent_.back().size();
  // Posted, because fail() calls back, and whoever sends is in the middle of something.
  if (unsent_bytes_ > unsent_bytes_max) {
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      self->fail(fmt::format("it does not read what it is sent ({} bytes)", self->unsent_bytes_));
    });
    return;
  }
  if (unsent_.size() == 1) write();
}

void ControlConnection::close_after_sending() {
  if (tls_ && !closing_ && !closed_) {
    tls_->close();
    queue(tls_->take_to_send());
  }
  closing_ = true;
  asio::error_code ignored;
  // Only our direction: closing a socket with unread bytes in it makes the kernel send RST, which
  // may overtake the last line on its way to the peer.
  if (unsent_.empty() && !closed_) socket_.shutdown(socket_.shutdown_send, ignored);
}

void ControlConnection::close() {
  closed_ = true;
  asio::error_code ignored;
  socket_.close(ignored);
}

void ControlConnection::read() {
  if (closed_) return;
  socket_.async_read_some(
      asio::buffer(chunk_),
      [self = shared_from_this()](const asio::error_code& error, std::size_t size) {
        if (self->closed_) return;
        if (error == asio::error::eof) return self->fail("it closed the connection");
        if (error) return self->fail(fmt::format("the connection broke: {}", error.message()));
        if (size > self->input_left_) return self->fail("it sent more than it may");
        self->input_left_ -= size;
        self->take({self->chunk_.data(), size});
        self->read();
      });
}

void ControlConnection::take(std::string_view bytes) {
  if (tls_ && !unseal(bytes)) return;
  if (!tls_) received_.append(bytes);
  take_lines();
  // After the lines: what was said before the end counts.
  if (tls_ && tls_->ended()) fail("it closed the connection");
}

bool ControlConnection::unseal(std::string_view bytes) {
  tls_->receive(bytes);
  if (tls_->failure() != TlsFailure::None) {
    tell_failure();
    fail(tls_->why());
    return false;
  }
  received_ += tls_->take_received();
  queue(tls_->take_to_send());
  return true;
}

// TLS has words for why it ends, which must go out before the socket is closed: whoever has another
// secret learns by them that waiting is of no use. At once, or not at all.
void ControlConnection::tell_failure() {
  const std::string alert = tls_->take_to_send();
  if (!unsent_.empty() || alert.empty()) return;
  [[maybe_unused]] const auto sent =
      ::send(socket_.native_handle(), alert.data(), alert.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ControlConnection::take_lines() {
  std::size_t begin = 0;
  while (!closed_) {
    const std::size_t end = received_.find('\n', begin);
    if (end == std::string::npos) break;
    // The callback may close us, but `received_` stays as it is until the loop is over.
    on_line_(std::string_view(received_).substr(begin, end - begin));
    begin = end + 1;
  }
  received_.erase(0, begin);
  if (!closed_ && received_.size() >= control_line_bytes_max) {
    fail(fmt::format("it sent a line longer than {} bytes", control_line_bytes_max));
  }
}

void ControlConnection::write() {
  asio::async_write(socket_, asio::buffer(unsent_.front()),
                    [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                      if (self->closed_) return;
                      if (error) {
                        return self->fail(fmt::format("the connection broke: {}", error.message()));
                      }
                      self->unsent_bytes_ -= self->unsent_.front().size();
                      self->unsent_.pop_front();
                      if (!self->unsent_.empty()) return self->write();
                      if (self->closing_) self->close_after_sending();
                    });
}

void ControlConnection::fail(const std::string& why) {
  if (closed_) return;
  close();
  // Moved out first: the callback may let go of whoever owns us.
  const OnClosed on_closed = std::move(on_closed_);
  on_closed(why);
}

namespace {

std::string printed(const asio::ip::tcp::endpoint& endpoint, bool with_port) {
  const std::string address = unmapped(endpoint.address()).to_string();
  return with_port ? host_and_port(address, endpoint.port()) : address;
}

}  // namespace

std::string ControlConnection::remote_name() const {
  asio::error_code error;
  const auto endpoint = socket_.remote_endpoint(error);
  return error ? "?" : printed(endpoint, true);
}

std::string ControlConnection::remote_address() const {
  asio::error_code error;
  const auto endpoint = socket_.remote_endpoint(error);
  return error ? "" : printed(endpoint, false);
}

std::string ControlConnection::local_address() const {
  asio::error_code error;
  const auto endpoint = socket_.local_endpoint(error);
  return error ? "" : printed(endpoint, false);
}

}  // namespace ddprun::rendezvous
