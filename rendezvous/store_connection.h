// The client's end of a store connection: a socket on which nothing waits without a deadline.
//
// A failure in the middle of an exchange leaves the two ends out of step, because replies carry no
// tag: the connection is then closed for good, and every later call says so.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

struct addrinfo;

namespace ddprun::rendezvous {

class StoreConnection {
 public:
  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;

  // Resolves `host`, connects and shakes hands (VALIDATE, PING); what fails is tried again, after
  // a pause that grows from 5 ms to 1 s, until `timeout`. Throws StoreError.
  StoreConnection(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout);
  ~StoreConnection();
  StoreConnection(const StoreConnection&) = delete;
  StoreConnection& operator=(const StoreConnection&) = delete;

  const std::string& name() const { return name_; }  // "host:port"
  std::string local_address() const;

  // `call` says for whom, in the message of the StoreError that these throw when the deadline
  // passes or the connection breaks.
  void send(std::string_view bytes, Deadline deadline, const std::string& call);
  std::string receive_bytes(Deadline deadline, const std::string& call);
  template <class Number>
  Number receive_number(Deadline deadline, const std::string& call) {
    char bytes[sizeof(Number)];
    receive(bytes, sizeof bytes, deadline, call);
    Number number;
    std::memcpy(&number, bytes, sizeof number);
    return number;
  }
  // False: nothing came until the deadline, and nothing is lost.
  bool wait_readable(Deadline deadline, const std::string& call);

  // Gives the connection up and throws StoreError("<call> on store <name>: <what>").
  [[noreturn]] void fail(const std::string& call, const std::string& what);

 private:
  bool try_connect(Deadline deadline);
  bool try_address(const addrinfo& address, Deadline deadline);
  bool shake_hands(Deadline deadline);
  void receive(char* to, std::size_t size, Deadline deadline, const std::string& call);
  void require_open(const std::string& call) const;
  bool poll_until(short events, Deadline deadline) const;
  void close();

  std::string host_;
  std::uint16_t port_;
  std::string name_;
  int fd_ = -1;
  std::string problem_;  // Of the last attempt to connect; later, why the connection was closed.
  std::string input_;    // Received but not yet consumed, from input_at_ on.
  std::size_t input_at_ = 0;
};

}  // namespace ddprun::rendezvous
