// Whoever gets here is this user already, for the folder is 0700; what is bounded is what a program
// of theirs could do by mistake: lines without an end, connections that are left open.
#include "launcher/watch/status_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <asio/local/stream_protocol.hpp>
#include <asio/read_until.hpp>
#include <asio/steady_timer.hpp>
#include <asio/streambuf.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/watch/job_connection.h"
#include "launcher/watch/run_folder.h"
#include "rendezvous/random_id.h"

namespace ddprun::launcher {
namespace {

using Stream = asio::local::stream_protocol;

constexpr std::size_t request_bytes_max = 4096;
constexpr int askers_max = 16;
constexpr std::chrono::seconds asker_limit{30};  // For a request, its answer, and its reading.
constexpr int folder_tries = 5;
constexpr std::chrono::seconds no_descriptor_pause{1};

std::string asked(asio::streambuf& received) {
  const auto bytes = received.data();
  const auto request = nlohmann::json::parse(asio::buffers_begin(bytes), asio::buffers_end(bytes),
                                             nullptr, /*allow_exceptions=*/false);
  if (!request.is_object() || !request.contains("ask") || !request["ask"].is_string()) return "";
  return request["ask"];
}

// A launcher that was killed leaves its socket behind; nobody answers there any more. Those whose
// process lives are not disturbed: many may be started at once.
void remove_dead_sockets(int folder) {
  for (const std::string& name : socket_names(folder)) {
    const int pid = std::atoi(name.c_str());
    if (::kill(pid, 0) != 0 && errno == ESRCH) connect_to_job(folder, name);
  }
}

}  // namespace

struct StatusSocket::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io, Answer to_ask) : acceptor(io), pause(io), answer(std::move(to_ask)) {}

  std::string open_in(const std::string& wanted);
  std::string listen(const std::string& wanted);
  void accept();
  void accept_later();
  void remove();

  Stream::acceptor acceptor;
  asio::steady_timer pause;
  Answer answer;
  std::string place;
  rendezvous::UniqueFd folder;
  std::string name;
  int askers = 0;
  bool closed = false;
};

// One who asks, from its connection to the end of its answer.
struct StatusSocket::Asker : std::enable_shared_from_this<Asker> {
  Asker(Stream::socket connection, std::shared_ptr<Impl> of)
      : owner(std::move(of)),
        socket(std::move(connection)),
        limit(socket.get_executor()),
        received(request_bytes_max) {
    ++owner->askers;
  }
  ~Asker() { --owner->askers; }

  void serve() {
    limit.expires_after(asker_limit);
    limit.async_wait([self = shared_from_this()](const asio::error_code& error) {
      asio::error_code ignored;
      if (!error) self->socket.close(ignored);
    });
    asio::async_read_until(socket, received, '\n',
                           [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                             if (error || self->owner->closed) return self->end();
                             self->owner->answer(
                                 asked(self->received),
                                 [self](const std::string& line) { self->reply(line); });
                           });
  }

  void reply(const std::string& line) {
    text = line + "\n";
    asio::async_write(
        socket, asio::buffer(text),
        [self = shared_from_this()](const asio::error_code&, std::size_t) { self->end(); });
  }

  void end() {
    limit.cancel();
    asio::error_code ignored;
    socket.close(ignored);
  }

  std::shared_ptr<Impl> owner;
  Stream::socket socket;
  asio::steady_timer limit;
  asio::streambuf received;
  std::string text;
};

// The folder may go between its opening and the socket in it: the last launcher that leaves removes
// it.
std::string StatusSocket::Impl::open_in(const std::string& wanted) {
  std::string why;
  for (int i = 0; i < folder_tries; ++i) {
    folder = open_run_folder(wanted, /*make=*/true, why);
    if (!folder) return why;
    why = listen(wanted);
    if (why.empty()) break;
    acceptor = Stream::acceptor(acceptor.get_executor());
  }
  return why;
}

std::string StatusSocket::Impl::listen(const std::string& wanted) {
  name = fmt::format("{}-{}", ::getpid(), rendezvous::random_id(4));
  // It gets its name when it can answer: until then connections are refused, as a dead one's are.
  const std::string unready = "." + name;
  asio::error_code error;
  acceptor.open(Stream(), error);
  if (!error) acceptor.bind({short_path(folder.get(), unready)}, error);
  if (!error) acceptor.listen(askers_max, error);
  if (!error && ::renameat(folder.get(), unready.c_str(), folder.get(), name.c_str()) != 0) {
    error = asio::error_code(errno, asio::system_category());
  }
  if (!error) {
    place = wanted;
    return "";
  }
  ::unlinkat(folder.get(), unready.c_str(), 0);
  return fmt::format("cannot listen in {}: {}", wanted, error.message());
}

void StatusSocket::Impl::accept() {
  acceptor.async_accept(
      [self = shared_from_this()](const asio::error_code& error, Stream::socket connection) {
        if (self->closed || error == asio::error::operation_aborted) return;
        // Without a descriptor left (EMFILE) it would be called again at once, for ever.
        if (error) return self->accept_later();
        if (self->askers < askers_max) {
          std::make_shared<Asker>(std::move(connection), self)->serve();
        }
        self->accept();
      });
}

void StatusSocket::Impl::accept_later() {
  pause.expires_after(no_descriptor_pause);
  pause.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (!error && !self->closed) self->accept();
  });
}

void StatusSocket::Impl::remove() {
  asio::error_code ignored;
  acceptor.close(ignored);
  pause.cancel();
  if (place.empty()) return;
  ::unlinkat(folder.get(), name.c_str(), 0);
  ::rmdir(place.c_str());  // Fails, as it should, while others are in it.
  place.clear();
}

StatusSocket::StatusSocket(asio::io_context& io, Answer answer)
    : impl_(std::make_shared<Impl>(io, std::move(answer))) {}

StatusSocket::~StatusSocket() {
  impl_->closed = true;
  impl_->remove();
}

std::string StatusSocket::path() const {
  return impl_->place.empty() ? "" : impl_->place + "/" + impl_->name;
}

std::string StatusSocket::open(const std::vector<std::string>& folders) {
  std::string why;
  for (const std::string& place : folders) {
    const std::string refusal = impl_->open_in(place);
    if (refusal.empty()) {
      remove_dead_sockets(impl_->folder.get());
      impl_->accept();
      return "";
    }
    why += (why.empty() ? "" : "; ") + refusal;
  }
  return why;
}

}  // namespace ddprun::launcher
