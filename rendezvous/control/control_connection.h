// One control connection: a TCP socket that carries lines both ways. Both ends use it, the
// coordinator and the agents.
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

namespace ddprun::rendezvous {

class ControlConnection : public std::enable_shared_from_this<ControlConnection> {
 public:
  // A whole line, without its newline; valid during the call.
  using OnLine = std::function<void(std::string_view line)>;
  // The other side closed, the connection broke, or it broke a limit. Called once.
  using OnClosed = std::function<void(const std::string& why)>;

  static constexpr std::size_t unsent_bytes_max = 4u << 20;  // More and the peer counts as stuck.

  // `received`: bytes that were already read from `socket`.
  ControlConnection(asio::ip::tcp::socket socket, std::string received);

  void start(OnLine on_line, OnClosed on_closed);
  void send(const ControlMessage& message);

  // How many more bytes the other side may send; then it counts as broken. At first any number.
  void limit_input(std::size_t bytes) { input_left_ = bytes; }

  // Sends what is queued, then ends our direction; the other side's end is still reported.
  void close_after_sending();
  void close();

  // "10.0.0.7:41234" of the other side, for messages; local_address() without the port.
  std::string remote_name() const;
  std::string remote_address() const;
  std::string local_address() const;

 private:
  void read();
  void take_lines();
  void write();
  void fail(const std::string& why);

  asio::ip::tcp::socket socket_;
  std::string received_;  // Bytes that do not make a whole line yet.
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
