// Plain sockets and poll(), no event loop: a worker has a thread of its own in these calls, and
// must be able to link this without Asio.
#include "rendezvous/client/store_connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <random>

#include "rendezvous/host_and_port.h"
#include "rendezvous/random_id.h"
#include "rendezvous/time_text.h"
#include "rendezvous/wire/store_attempt.h"
#include "rendezvous/wire/wire.h"

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds pause_first{5};
constexpr milliseconds pause_max{1'000};
// One address, and one handshake, may take so long before the next is tried: a dropped SYN is
// repeated by the kernel after 1, 2 and 4 s.
constexpr milliseconds attempt_timeout{8'000};
// Of this process's own descriptors, which nobody but it can give back.
constexpr milliseconds own_shortage_patience{2'000};
constexpr std::size_t read_bytes = 4u << 10;    // Of answers, at a time.
constexpr std::size_t value_bytes = 64u << 10;  // Of a value, at first.
constexpr std::size_t identity_bytes_max = 256;

constexpr const char* closed_by_store =
    "the store closed the connection (a new attempt began, it refused the request, or it ended)";

void put_compare_set(std::string& out, std::string_view key, std::string_view desired) {
  out += static_cast<char>(StoreOp::CompareSet);
  put_string(out, key);
  put_string(out, {});
  put_string(out, desired);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

std::string errno_text(int error) { return std::generic_category().message(error); }

// Half to all of `pause`, so that a thousand clients that were refused together do not come back
// together.
milliseconds jittered(milliseconds pause) {
  thread_local std::minstd_rand random{std::random_device{}()};
  std::uniform_int_distribution<milliseconds::rep> part(pause.count() / 2, pause.count());
  return milliseconds(part(random));
}

}  // namespace

StoreConnection::StoreConnection(std::string host, std::uint16_t port, std::string hosted_by,
                                 Prove prove, int interrupt_fd)
    : host_(std::move(host)),
      port_(port),
      name_(host_and_port(host_, port)),
      hosted_by_(std::move(hosted_by)),
      prove_(std::move(prove)),
      interrupt_fd_(interrupt_fd) {}

std::string StoreConnection::connect(std::string_view attempt, milliseconds timeout,
                                     WaitWords words) {
  LongWait wait(std::move(words), Clock::now());
  const Deadline deadline = Clock::now() + timeout;
  std::optional<Deadline> short_until;
  for (milliseconds pause = pause_first;; pause = std::min(pause * 3 / 2, pause_max)) {
    if (try_connect(attempt, deadline)) return identity_;
    const auto now = Clock::now();
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - now);
    if (left <= milliseconds(0)) break;
    if (!no_descriptor_) {
      short_until.reset();
    } else if (!short_until) {
      short_until = now + own_shortage_patience;
    } else if (now >= *short_until) {
      throw StoreError("cannot connect to store " + name_ + ": " + problem_ + " for " +
                       time_text(own_shortage_patience) +
                       ": this process has no file descriptor left (raise the limit of open files, "
                       "ulimit -n)");
    }
    if (wait.is_due(now)) {
      wait.tell(now,
                "store " + name_ + ": " + problem_ + " (is " + hosted_by_ + " running there?)");
    }
    if (interrupted(static_cast<int>(std::min(jittered(pause), left).count()))) end_interrupted();
  }
  throw StoreConnectionLost("cannot connect to store " + name_ + " within " + time_text(timeout) +
                            ": " + problem_ + " (is " + hosted_by_ +
                            " running there, and are address and port right?)");
}

StoreConnection::~StoreConnection() { close(); }

void StoreConnection::close() { fd_.reset(); }

bool StoreConnection::try_connect(std::string_view attempt, Deadline deadline) {
  close();
  no_descriptor_ = false;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &found);
  if (error != 0) {
    problem_ = "the name cannot be resolved: ";
    no_descriptor_ = error == EAI_SYSTEM && errno == EMFILE;
    problem_ += error == EAI_SYSTEM ? errno_text(errno) : gai_strerror(error);
    return false;
  }
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    // Each address has its own share of the time: the first one of a name may lead nowhere.
    const Deadline until = std::min(deadline, Clock::now() + attempt_timeout);
    if (try_address(*at, until) && shake_hands(attempt, until)) return true;
    close();
  }
  return false;
}

bool StoreConnection::try_address(const addrinfo& address, Deadline deadline) {
  fd_.reset(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd_) {
    no_descriptor_ = errno == EMFILE;
    problem_ = "socket: " + errno_text(errno);
    return false;
  }
  // A request is sent in as many pieces as it has; the kernel would hold back the last one until
  // the first was acknowledged, for up to 40 ms.
  const int on = 1;
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  if (::connect(fd_.get(), address.ai_addr, address.ai_addrlen) == 0) return true;
  int error = errno;  // Before poll(): one that a signal interrupts leaves EINTR behind.
  if (error == EINPROGRESS) {
    if (!poll_until(POLLOUT, deadline)) {
      problem_ = "no answer to the connection request";
      return false;
    }
    socklen_t size = sizeof error;
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0) problem_ = errno_text(error);
  return error == 0;
}

// VALIDATE, which is not answered; PING, so that a port on which something else listens is noticed
// here; the question for the attempt.
bool StoreConnection::shake_hands(std::string_view attempt, Deadline deadline) {
  const auto nonce = static_cast<std::uint32_t>(getpid());
  std::string hello(1, static_cast<char>(StoreOp::Validate));
  put_number(hello, validate_magic);
  hello += static_cast<char>(StoreOp::Ping);
  put_number(hello, nonce);
  hello += static_cast<char>(StoreOp::CompareSet);
  put_string(hello, std::string(attempt_key_prefix).append(attempt));
  put_string(hello, {});
  // Never the same twice: an emptied store would keep it.
  put_string(hello, "#" + random_id(8));
  if (prove_) put_compare_set(hello, challenge_key, "");
  input_.clear();
  input_at_ = 0;
  try {
    send(hello, deadline, "handshake");
    const bool store = receive_number<std::uint32_t>(deadline, "handshake") == nonce;
    const auto size = store ? receive_number<std::uint64_t>(deadline, "handshake") : 0;
    if (store && size > 0 && size <= identity_bytes_max) {
      identity_.resize(size);
      receive(identity_.data(), size, deadline, "handshake");
      // Behind the name of another attempt our server closes: no challenge follows it.
      if (prove_ && !names_another_attempt(identity_, attempt)) prove_key(deadline);
      problem_.clear();
      return true;
    }
    problem_ = "what listens there is not a c10d store (it garbled a PING)";
  } catch (const StoreInterrupted&) {
    throw;
  } catch (const StoreError&) {  // problem_ says why.
  }
  return false;
}

// The question for the challenge is out already: it costs a store that wants no proof nothing.
void StoreConnection::prove_key(Deadline deadline) {
  const auto size = receive_number<std::uint64_t>(deadline, "handshake");
  if (size == 0) return;
  if (size > identity_bytes_max) fail("handshake", "its challenge is too long");
  std::string challenge(size, '\0');
  receive(challenge.data(), size, deadline, "handshake");
  std::string answer;
  put_compare_set(answer, proof_key, prove_(store_proof_statement(challenge)));
  send(answer, deadline, "handshake");
  if (receive_number<std::uint64_t>(deadline, "handshake") != 0) {
    fail("handshake", "it garbled the answer to our proof");
  }
}

// What is left of an answer that somebody gave up, or the end of the connection: neither can be
// before the next request is sent.
bool StoreConnection::idle() {
  if (!fd_ || input_at_ < input_.size()) return false;
  char byte;
  const ssize_t got = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

std::string StoreConnection::local_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[NI_MAXHOST] = "";
  if (!fd_ || getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof text, nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    throw StoreError("the connection to store " + name_ +
                     " has no local address: " + (problem_.empty() ? errno_text(errno) : problem_));
  }
  return text;
}

void StoreConnection::send(std::string_view bytes, Deadline deadline, const std::string& call) {
  while (!bytes.empty()) {
    require_open(call);
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!poll_until(POLLOUT, deadline)) {
        give_up<StoreTimeout>(call, "the store took no more bytes in time");
      }
    } else if (errno != EINTR) {
      give_up<StoreConnectionLost>(call, errno_text(errno));
    }
  }
}

bool StoreConnection::wait_readable(Deadline deadline, const std::string& call) {
  require_open(call);
  return input_at_ < input_.size() || poll_until(POLLIN, deadline);
}

void StoreConnection::receive(char* to, std::size_t size, Deadline deadline,
                              const std::string& call) {
  while (size > 0) {
    if (input_at_ < input_.size()) {
      const std::size_t part = std::min(size, input_.size() - input_at_);
      std::memcpy(to, input_.data() + input_at_, part);
      input_at_ += part;
      to += part;
      size -= part;
      continue;
    }
    require_open(call);
    // Short answers through input_, so that several that came together cost one call.
    const bool direct = size >= read_bytes;
    if (!direct) input_.resize(read_bytes);
    const ssize_t got =
        ::recv(fd_.get(), direct ? to : input_.data(), direct ? size : read_bytes, 0);
    const int error = errno;
    if (!direct) {
      input_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
      input_at_ = 0;
    } else if (got > 0) {
      to += got;
      size -= static_cast<std::size_t>(got);
    }
    if (got > 0) continue;
    if (got == 0) give_up<StoreConnectionLost>(call, closed_by_store);
    if (error == EAGAIN || error == EWOULDBLOCK) {
      if (!poll_until(POLLIN, deadline)) {
        give_up<StoreTimeout>(call, "the store did not answer in time");
      }
    } else if (error != EINTR) {
      give_up<StoreConnectionLost>(call, errno_text(error));
    }
  }
}

std::string StoreConnection::receive_bytes(Deadline deadline, const std::string& call) {
  const auto size = receive_number<std::uint64_t>(deadline, call);
  std::string bytes;
  // Not all at once: a peer that is no store must not make us allocate what it announces.
  while (bytes.size() < size) {
    const std::size_t at = bytes.size();
    bytes.resize(at + std::min<std::size_t>(size - at, std::max(at, value_bytes)));
    receive(bytes.data() + at, bytes.size() - at, deadline, call);
  }
  return bytes;
}

// As a pause, too: without a descriptor poll() waits for the time alone.
bool StoreConnection::interrupted(int timeout_ms) const {
  pollfd entry{interrupt_fd_, POLLIN, 0};
  return ::poll(&entry, 1, timeout_ms) > 0;
}

void StoreConnection::end_interrupted() {
  problem_ = "the wait was interrupted";
  close();
  throw StoreInterrupted("store " + name_ + ": " + problem_);
}

bool StoreConnection::poll_until(short events, Deadline deadline) {
  for (;;) {
    // Rounded up: with the rest of a millisecond rounded down to 0, the last one would be spent
    // in a busy loop.
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    pollfd entries[] = {{fd_.get(), events, 0}, {interrupt_fd_, POLLIN, 0}};
    const int timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
    const int ready = ::poll(entries, 2, timeout_ms);
    if (ready > 0 && entries[1].revents != 0) end_interrupted();
    if (ready > 0) return true;
    if (ready == 0 && left <= 1'000'000'000) return false;
  }
}

void StoreConnection::require_open(const std::string& call) const {
  if (fd_) return;
  throw StoreConnectionLost(call + " on store " + name_ +
                            ": the connection was given up before: " + problem_);
}

template <class Error>
void StoreConnection::give_up(const std::string& call, const std::string& what) {
  problem_ = what;
  close();
  throw Error(call + " on store " + name_ + ": " + what);
}

void StoreConnection::fail(const std::string& call, const std::string& what) {
  give_up<StoreError>(call, what);
}

}  // namespace ddprun::rendezvous
