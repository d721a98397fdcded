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

#include <algorithm>
#include <asio/local/stream_protocol.hpp>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/watch/answer_server.h"
#include "launcher/watch/job_connection.h"
#include "launcher/watch/run_folder.h"
#include "rendezvous/json_text.h"

namespace ddprun::launcher {
namespace {

using Stream = asio::local::stream_protocol;

const AnswerLimits asker_limits{
    .request_end = "\n", .request_bytes = 4096, .at_once = 16, .time = std::chrono::seconds(30)};
constexpr int folder_tries = 5;

rendezvous::Query asked(const std::string& received) {
  rendezvous::Query query;
  const auto request = rendezvous::json_of(received);
  if (!request.is_object() || !request.contains("ask") || !request["ask"].is_string()) return query;
  query.what = request["ask"];
  const auto number = [&](const char* name, int& value) {
    const bool given = request.contains(name) && request[name].is_number_unsigned();
    if (given)
      value =
          static_cast<int>(std::min<std::uint64_t>(request[name].get<std::uint64_t>(), INT_MAX));
  };
  number("rank", query.rank);
  number("lines", query.lines);
  return query;
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

struct StatusSocket::Impl {
  Impl(asio::io_context& io, Answer answer)
      : server(std::make_shared<AnswerServer<Stream>>(
            io, asker_limits,
            [answer = std::move(answer)](const std::string& request,
                                         const AnswerServer<Stream>::Reply& reply) {
              answer(asked(request), [reply](const std::string& line) { reply(line + "\n"); });
            })) {}

  std::string open_in(const std::string& wanted);
  std::string listen(const std::string& wanted);
  void remove();

  std::shared_ptr<AnswerServer<Stream>> server;
  std::string place;
  rendezvous::UniqueFd folder;
  std::string name;
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
    server->acceptor = Stream::acceptor(server->acceptor.get_executor());
  }
  return why;
}

std::string StatusSocket::Impl::listen(const std::string& wanted) {
  name = new_socket_name();
  // It gets its name when it can answer: until then connections are refused, as a dead one's are.
  const std::string unready = "." + name;
  asio::error_code error;
  Stream::acceptor& acceptor = server->acceptor;
  acceptor.open(Stream(), error);
  if (!error) acceptor.bind({short_path(folder.get(), unready)}, error);
  if (!error) acceptor.listen(asker_limits.at_once, error);
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

void StatusSocket::Impl::remove() {
  server->close();
  if (place.empty()) return;
  ::unlinkat(folder.get(), name.c_str(), 0);
  ::rmdir(place.c_str());  // Fails, as it should, while others are in it.
  place.clear();
}

StatusSocket::StatusSocket(asio::io_context& io, Answer answer)
    : impl_(std::make_unique<Impl>(io, std::move(answer))) {}

StatusSocket::~StatusSocket() { impl_->remove(); }

std::string StatusSocket::path() const {
  return impl_->place.empty() ? "" : impl_->place + "/" + impl_->name;
}

std::string StatusSocket::open(const std::vector<std::string>& folders) {
  std::string why;
  for (const std::string& place : folders) {
    const std::string refusal = impl_->open_in(place);
    if (refusal.empty()) {
      remove_dead_sockets(impl_->folder.get());
      impl_->server->begin();
      return "";
    }
    why += (why.empty() ? "" : "; ") + refusal;
  }
  return why;
}

}  // namespace ddprun::launcher
