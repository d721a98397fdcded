// Whoever reaches the port can ask; what one can cost is bounded by watch/answer_server.h.
#include "launcher/export/page_server.h"

#include <fmt/format.h>

#include <chrono>
#include <stdexcept>
#include <utility>

namespace ddprun::launcher {
namespace {

using asio::ip::tcp;

const AnswerLimits page_limits{.request_end = "\r\n\r\n",
                               .request_bytes = 16 << 10,
                               .at_once = 32,
                               .time = std::chrono::seconds(20)};

}  // namespace

PageServer::PageServer(asio::io_context& io, const std::string& host, std::uint16_t port,
                       const std::string& option, PageLookup lookup,
                       std::function<void(std::function<void()> done)> before) {
  asio::error_code error;
  const tcp::endpoint place(asio::ip::make_address(host, error), port);
  server_ = std::make_shared<AnswerServer<tcp>>(
      io, page_limits,
      [loopback = place.address().is_loopback(), lookup = std::move(lookup),
       before = std::move(before)](const std::string& request,
                                   const AnswerServer<tcp>::Reply& reply) {
        const auto answer = [=] { reply(http_reply(request, loopback, lookup)); };
        if (!before) return answer();
        before(answer);
      });
  tcp::acceptor& acceptor = server_->acceptor;
  if (!error) acceptor.open(place.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(place, error);
  if (!error) acceptor.listen(page_limits.at_once, error);
  if (error) {
    throw std::runtime_error(
        fmt::format("{}: cannot listen on {} port {}: {}; give another port, "
                    "or 0 for a free one",
                    option, host, port, error.message()));
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
