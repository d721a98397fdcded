// Whoever reaches the port can ask; what one can cost is bounded by status/answer_server.h.
#include "launcher/export/page_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <utility>

#include "rendezvous/store/socket_owner.h"

namespace ddprun::launcher {
namespace {

using asio::ip::tcp;

const AnswerLimits page_limits{.request_end = "\r\n\r\n",
                               .request_bytes = 16 << 10,
                               .at_once = 32,
                               .time = std::chrono::seconds(20)};

using Owners = std::optional<rendezvous::SocketOwner>;

void ask_kernel_of_owners(Owners& owners, int listener, const std::string& option) {
  owners.emplace(listener);
  const std::string warning = owners->warning(option, "read");
  if (warning.empty()) return;
  spdlog::warn("{}", warning);
  owners.reset();
}

bool may_read(const Owners& owners, int socket) {
  if (!owners) return true;
  const auto owner = owners->of_peer(socket);
  return owner && rendezvous::is_own_user(*owner);
}

}  // namespace

PageServer::PageServer(asio::io_context& io, const std::string& host, std::uint16_t port,
                       const std::string& option, PageReaders readers, PageLookup lookup,
                       std::function<void(std::function<void()> done)> before) {
  asio::error_code error;
  const tcp::endpoint place(asio::ip::make_address(host, error), port);
  const auto owners = std::make_shared<Owners>();
  server_ = std::make_shared<AnswerServer<tcp>>(
      io, page_limits,
      [loopback = place.address().is_loopback(), owners, option, lookup = std::move(lookup),
       before = std::move(before)](const std::string& request, int socket,
                                   const AnswerServer<tcp>::Reply& reply) {
        if (!may_read(*owners, socket)) {
          return reply(http_forbidden("this is another user's job; " + option +
                                      " ADDRESS:PORT, with an address of a network, lets others "
                                      "read"));
        }
        before([=] { reply(http_reply(request, loopback, lookup)); });
      });
  tcp::acceptor& acceptor = server_->acceptor;
  if (!error) acceptor.open(place.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(place, error);
  if (!error) acceptor.listen(4 * page_limits.at_once, error);  // Who comes in a flood waits.
  if (error) {
    throw std::runtime_error(
        fmt::format("{}: cannot listen on {} port {}: {}; give another port, "
                    "or 0 for a free one",
                    option, host, port, error.message()));
  }
  if (readers == PageReaders::OwnUser && place.address().is_loopback()) {
    ask_kernel_of_owners(*owners, acceptor.native_handle(), option);
  }
  server_->begin();
}

PageServer::~PageServer() { server_->close(); }

std::string PageServer::url() const {
  const tcp::endpoint place = server_->acceptor.local_endpoint();
  const std::string host = place.address().to_string();
  return fmt::format("http://{}:{}", place.address().is_v6() ? "[" + host + "]" : host,
                     place.port());
}

}  // namespace ddprun::launcher
