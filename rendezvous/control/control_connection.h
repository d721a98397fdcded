// One control connection: a TCP socket that carries lines both ways, sealed with the job's key
// where it has one. Both ends use it, the coordinator and the agents.
//
// Runs on the socket's io_context, in one thread. Lives as long as reads or writes are pending;
// callbacks come from the event loop, never from inside a call to this class, and never after
// close().
#pragma once

#include <array>
#include <asio/ip/tcp.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/control/control_message.h"
#include "rendezvous/secure/tls_session.h"

namespace ddprun::rendezvous {

class ControlConnection : public std::enable_shared_from_this<ControlConnection> {
 public:
  // A whole line, without its newline; valid during the call.
  using OnLine = std::function<void(std::string_view line)>;
  // The other side closed, the connection broke, or it broke a limit. Called once.
  using OnClosed = std::function<void(const std::string& why)>;

  static constexpr std::size_t unsent_bytes_max = 4u << 20;  // More and the peer counts as stuck.

  // `received`: bytes that were already read from `socket`. With `tls` no line comes before the
  // other side has proved the key, and none goes; how long that may take is the owner's to limit.
  ControlConnection(asio::ip::tcp::socket socket, std::string received,
                    std::unique_ptr<TlsSession> tls = nullptr);

  void start(OnLine on_line, OnClosed on_closed);
  void send(const ControlMessage& message);

  // How many more bytes the other side may send; then it counts as broken. At first any number.
  void limit_input(std::size_t bytes) { input_left_ = bytes; }

  // Sends what is queued, then ends our direction; the other side's end is still reported.
  void close_after_sending();
  void close();

  // Whether the other side has proved the key; true where none is asked for.
  bool proved() const { return !tls_ || tls_->established(); }
  TlsFailure tls_failure() const { return tls_ ? tls_->failure() : TlsFailure::None; }

  int native_handle() { return socket_.native_handle(); }  // For questions to the kernel alone.

  // "10.0.0.7:41234" of the other side, for messages; local_address() without the port.
  std::string remote_name() const;
  std::string remote_address() const;
  std::string local_address() const;

 private:
  void read();
  void take(std::string_view bytes);
  bool unseal(std::string_view bytes);
  void take_lines();
  void queue(std::string bytes);
  void tell_failure();
  void write();
  void fail(const std::string& why);

  asio::ip::tcp::socket socket_;
  std::unique_ptr<TlsSession> tls_;  // Null: plain lines.
  std::string received_;             // Bytes that do not make a whole line yet.
  std::array<char, 8192> chunk_{};
  std::deque<std::string> unsent_;  // The first is being written.
  std::size_t unsent_bytes_ = 0;
  std::size_t input_left_ = std::numeric_limits<std::size_t>::max();
  bool closing_ = false;  // Nothing is sent after what is queued.
  bool closed_ = false;
  OnLine on_line_;
  OnClosed on_closed_;
};

}  // namespace ddprun::rendezvous
