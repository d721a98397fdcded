// The client's end of a store connection: a socket on which nothing waits without a deadline.
//
// A failure in the middle of an exchange leaves the two ends out of step, because replies carry no
// tag: the connection is then closed, and can be made anew.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#include "rendezvous/store_client.h"
#include "rendezvous/unique_fd.h"

struct addrinfo;

namespace ddprun::rendezvous {

// The connection broke, or could not be made: the same may work with a new one.
class StoreConnectionLost : public StoreError {
 public:
  using StoreError::StoreError;
};

class StoreConnection {
 public:
  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;

  using Prove = std::function<std::string(std::string_view statement)>;

  // `hosted_by`: whose store it is, for messages. `prove`, `interrupt_fd`: StoreClientOptions'.
  StoreConnection(std::string host, std::uint16_t port, std::string hosted_by, Prove prove = {},
                  int interrupt_fd = -1);
  ~StoreConnection();
  StoreConnection(const StoreConnection&) = delete;
  StoreConnection& operator=(const StoreConnection&) = delete;

  // Resolves the host, connects and shakes hands; what fails is tried again, after a pause that
  // grows from 5 ms to 1 s, for `timeout`. The handshake is VALIDATE, PING, and the question for
  // the attempt (store_attempt.h), whose answer is returned. Throws StoreConnectionLost, or
  // StoreError where this process has had no descriptor for it for two seconds. This and all that
  // waits throws StoreInterrupted, too.
  std::string connect(std::string_view attempt, std::chrono::milliseconds timeout,
                      WaitWords words = {});
  bool open() const { return fd_.valid(); }
  // False if it is known to be broken: the peer has closed it, or said something unasked.
  bool idle();
  void close();

  const std::string& name() const { return name_; }  // "host:port"
  std::string local_address() const;

  // `call` says for whom, in the message of what these throw, closing the connection: StoreTimeout
  // when the deadline passes, StoreConnectionLost when it breaks.
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

  // Closes the connection, on which something came that cannot be, and throws StoreError("<call> on
  // store <name>: <what>").
  [[noreturn]] void fail(const std::string& call, const std::string& what);

 private:
  bool try_connect(std::string_view attempt, Deadline deadline);
  bool try_address(const addrinfo& address, Deadline deadline);
  bool shake_hands(std::string_view attempt, Deadline deadline);
  void prove_key(Deadline deadline);
  void receive(char* to, std::size_t size, Deadline deadline, const std::string& call);
  void require_open(const std::string& call) const;
  bool poll_until(short events, Deadline deadline);
  bool interrupted(int timeout_ms) const;
  [[noreturn]] void end_interrupted();
  template <class Error>
  [[noreturn]] void give_up(const std::string& call, const std::string& what);

  std::string host_;
  std::uint16_t port_;
  std::string name_;
  std::string hosted_by_;
  Prove prove_;
  int interrupt_fd_;
  UniqueFd fd_;
  std::string problem_;         // Why it could not be made, or was closed.
  bool no_descriptor_ = false;  // So: this process may open no more files.
  std::string identity_;        // What the store answered to the question for its attempt.
  std::string input_;           // Received but not yet consumed, from input_at_ on.
  std::size_t input_at_ = 0;
};

}  // namespace ddprun::rendezvous
