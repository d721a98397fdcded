// The protocol is lines of text: a greeting with a version, an order with the answer OK, and the
// order whose answer ends with the connection. Another version is talked to as NVIDIA's own client
// does: all the same.
#include "launcher/stall/nccl_ras.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "rendezvous/time_text.h"
#include "rendezvous/unique_fd.h"

namespace ddprun::launcher {
namespace {

using std::chrono::milliseconds;
using RasClock = std::chrono::steady_clock;

constexpr std::size_t answer_bytes_max = 1 << 20;
// For the ranks to answer the one that is asked, which then says what it has. It waits a little
// longer than it is told.
constexpr milliseconds left_for_the_rest{3'000};

class RasClient {
 public:
  RasClient(const std::string& address, milliseconds limit)
      : address_(address), limit_(limit), until_(RasClock::now() + limit) {}

  RasAnswer ask() {
    if (!open()) return {"", why_};
    const auto seconds = std::max<long long>(1, (limit_ - left_for_the_rest).count() / 1'000);
    std::string line;
    if (!say("CLIENT PROTOCOL 2\n") || !read_line(line)) return {"", why_};
    if (!starts_with(line, "server protocol ")) return {"", speaks_otherwise(line)};
    if (!say("TIMEOUT " + std::to_string(seconds) + "\n") || !read_line(line)) return {"", why_};
    if (!starts_with(line, "ok")) return {"", speaks_otherwise(line)};
    if (!say("VERBOSE STATUS\n")) return {"", why_};
    while (text_.size() < answer_bytes_max && receive()) {
    }
    while (!text_.empty() && text_.back() == '\n') text_.pop_back();
    if (text_.empty() && why_.empty()) why_ = called() + " closed the connection without an answer";
    return {std::move(text_), why_};
  }

 private:
  bool open();
  bool wait(short events);
  bool say(std::string_view text);
  bool receive();  // Some of it. False: it is at its end, or `why_`.
  bool read_line(std::string& line);

  std::string called() const { return "NCCL RAS at " + address_; }
  bool fail(const std::string& what) {
    why_ = called() + " " + what;
    return false;
  }
  bool reached() {
    why_.clear();  // Of the addresses before.
    return true;
  }
  std::string speaks_otherwise(const std::string& line) const {
    return called() + " speaks another protocol: " + line.substr(0, 80);
  }
  static bool starts_with(const std::string& line, std::string_view begin) {
    return line.size() >= begin.size() &&
           ::strncasecmp(line.data(), begin.data(), begin.size()) == 0;
  }

  std::string address_;
  milliseconds limit_;
  RasClock::time_point until_;
  rendezvous::UniqueFd socket_;
  std::string text_;  // Received, and not taken yet.
  std::string why_;
};

bool RasClient::open() {
  const std::size_t colon = address_.rfind(':');
  if (colon == std::string::npos) return fail("cannot be asked: no port is named");
  std::string host = address_.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error =
          ::getaddrinfo(host.c_str(), address_.substr(colon + 1).c_str(), &hints, &found))
    return fail(std::string("cannot be asked: ") + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, ::freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    rendezvous::UniqueFd fd(
        ::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) {  // What an address answered tells more.
      if (why_.empty()) fail(std::string("cannot be asked: ") + std::strerror(errno));
      continue;
    }
    socket_ = std::move(fd);
    if (::connect(socket_.get(), each->ai_addr, each->ai_addrlen) == 0) return reached();
    int error = errno;
    if (error == EINPROGRESS) {
      if (!wait(POLLOUT)) return false;
      socklen_t size = sizeof error;
      ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) return reached();
    }
    fail(std::string("cannot be reached: ") + std::strerror(error));
  }
  return false;
}

bool RasClient::wait(short events) {
  const auto left = std::chrono::ceil<milliseconds>(until_ - RasClock::now());
  pollfd waited{socket_.get(), events, 0};
  if (left.count() > 0 && ::poll(&waited, 1, static_cast<int>(left.count())) > 0) return true;
  return fail("has not answered within " + rendezvous::time_text(limit_));
}

bool RasClient::say(std::string_view text) {
  while (!text.empty()) {
    if (!wait(POLLOUT)) return false;
    const ssize_t sent = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR)
      return fail(std::string("broke off: ") + std::strerror(errno));
    if (sent > 0) text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool RasClient::receive() {
  for (;;) {
    if (!wait(POLLIN)) return false;
    char piece[4096];
    const ssize_t count = ::recv(socket_.get(), piece, sizeof piece, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count < 0) return fail(std::string("broke off: ") + std::strerror(errno));
    text_.append(piece, static_cast<std::size_t>(count));
    return count > 0;
  }
}

bool RasClient::read_line(std::string& line) {
  std::size_t end = 0;
  while ((end = text_.find('\n')) == std::string::npos && text_.size() < answer_bytes_max) {
    if (!receive()) return why_.empty() ? fail("closed the connection") : false;
  }
  line = text_.substr(0, end);
  text_.erase(0, end == std::string::npos ? end : end + 1);
  return true;
}

}  // namespace

RasAnswer ask_nccl_ras(const std::string& address, milliseconds limit) {
  return RasClient(address, limit).ask();
}

}  // namespace ddprun::launcher
