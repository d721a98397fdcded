// Whoever gets here is this user already, for the folder is 0700; what is bounded is what a program
// of theirs could do by mistake: lines without an end, connections that are left open.
#include "launcher/watch/status_socket.h"

#include <algorithm>
#include <asio/local/stream_protocol.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <climits>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/watch/answer_server.h"
#include "rendezvous/json/json_text.h"

namespace ddprun::launcher {
namespace {

using Stream = asio::local::stream_protocol;

const AnswerLimits asker_limits{
    .request_end = "\n", .request_bytes = 4096, .at_once = 16, .time = std::chrono::seconds(30)};

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

}  // namespace

struct StatusSocket::Impl {
  Impl(asio::io_context& loop, Answer answering)
      : io(loop), answer(std::move(answering)), names(loop) {}

  void wait_for_removal();

  asio::io_context& io;
  Answer answer;
  std::unique_ptr<RunSocket> socket;
  std::shared_ptr<AnswerServer<Stream>> server;
  asio::posix::stream_descriptor names;
  std::function<void()> on_gone;
};

void StatusSocket::Impl::wait_for_removal() {
  names.async_wait(asio::posix::stream_descriptor::wait_read,
                   [this](const asio::error_code& error) {
                     if (error) return;
                     if (!socket->is_gone(names.native_handle())) return wait_for_removal();
                     if (const auto told = std::exchange(on_gone, nullptr)) told();
                   });
}

StatusSocket::StatusSocket(asio::io_context& io, Answer answer)
    : impl_(std::make_unique<Impl>(io, std::move(answer))) {}

StatusSocket::~StatusSocket() {
  if (impl_->server) impl_->server->close();
}

std::unique_ptr<RunSocket> StatusSocket::socket_in(const std::vector<std::string>& folders) {
  return std::make_unique<RunSocket>(folders, asker_limits.at_once);
}

void StatusSocket::serve(std::unique_ptr<RunSocket> socket, std::function<void()> on_gone) {
  if (impl_->server) impl_->server->close();
  asio::error_code ignored;
  impl_->names.close(ignored);
  impl_->socket = std::move(socket);
  impl_->on_gone = std::move(on_gone);
  impl_->server = std::make_shared<AnswerServer<Stream>>(
      impl_->io, asker_limits,
      [answer = impl_->answer](const std::string& request, int,
                               const AnswerServer<Stream>::Reply& reply) {
        answer(asked(request), [reply](const std::string& line) { reply(line + "\n"); });
      });
  impl_->server->acceptor.assign(Stream(), impl_->socket->take_listener().release());
  impl_->server->begin();
  if (rendezvous::UniqueFd watch = impl_->socket->take_watch()) {
    impl_->names.assign(watch.release());
    impl_->wait_for_removal();
  }
}

}  // namespace ddprun::launcher
