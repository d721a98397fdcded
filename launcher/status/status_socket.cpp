// Whoever gets here is this user already, for the folder is 0700; what is bounded is what a program
// of theirs could do by mistake: lines without an end, connections that are left open.
#include "launcher/status/status_socket.h"

#include <algorithm>
#include <asio/local/stream_protocol.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <climits>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/status/answer_server.h"
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
  Impl(asio::io_context& loop, Answer answering, std::chrono::milliseconds every)
      : io(loop), look_every(every), answer(std::move(answering)), look(loop) {}

  void look_for_removal();

  asio::io_context& io;
  const std::chrono::milliseconds look_every;
  Answer answer;
  std::unique_ptr<RunSocket> socket;
  std::shared_ptr<AnswerServer<Stream>> server;
  asio::steady_timer look;
  std::function<void()> on_gone;
};

void StatusSocket::Impl::look_for_removal() {
  look.expires_after(look_every);
  look.async_wait([this](const asio::error_code& error) {
    if (error) return;
    if (!socket->is_gone()) return look_for_removal();
    if (const auto told = std::exchange(on_gone, nullptr)) told();
  });
}

StatusSocket::StatusSocket(asio::io_context& io, Answer answer,
                           std::chrono::milliseconds look_every)
    : impl_(std::make_unique<Impl>(io, std::move(answer), look_every)) {}

StatusSocket::~StatusSocket() {
  if (impl_->server) impl_->server->close();
}

std::unique_ptr<RunSocket> StatusSocket::socket_in(const std::vector<std::string>& folders) {
  return std::make_unique<RunSocket>(folders, asker_limits.at_once);
}

void StatusSocket::serve(std::unique_ptr<RunSocket> socket, std::function<void()> on_gone) {
  if (impl_->server) impl_->server->close();
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
  impl_->look_for_removal();
}

}  // namespace ddprun::launcher
