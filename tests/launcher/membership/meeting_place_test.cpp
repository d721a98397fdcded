// How a coordinator's node looks after its key where etcd is away: a server that hangs up.
#include "launcher/membership/meeting_place.h"

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "tests/testing/catch.h"
#include "tests/testing/heard_log.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace std::chrono_literals;

namespace {

constexpr auto interval = 50ms;

// Counts who has called, and answers nobody.
class HangingUp {
 public:
  explicit HangingUp(asio::io_context& io) : acceptor_(io, {asio::ip::address_v4::loopback(), 0}) {
    accept();
  }
  std::string url() const {
    return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }
  int calls() const { return calls_; }

 private:
  void accept() {
    acceptor_.async_accept([this](const asio::error_code& error, asio::ip::tcp::socket) {
      if (error) return;
      ++calls_;
      accept();
    });
  }

  asio::ip::tcp::acceptor acceptor_;
  int calls_ = 0;
};

}  // namespace

TEST_CASE("16.1: a coordinator says once that etcd is away, and tries again after a pause",
          "[launcher][membership]") {
  asio::io_context io;
  HangingUp etcd(io);
  const testing::HeardLog log;
  MeetingPlace place(io,
                     std::make_shared<rendezvous::EtcdMeeting>(
                         rendezvous::EtcdServers{.urls = {etcd.url()}}, "run", "etcd", 4s, 60s),
                     "etcd", {.interval = interval, .answer = testing::patience(8s)});
  const auto run_until = [&](int calls) {
    const auto end = std::chrono::steady_clock::now() + testing::patience(20s);
    while (etcd.calls() < calls && std::chrono::steady_clock::now() < end) io.run_one_for(100ms);
    return etcd.calls() >= calls;
  };
  const rendezvous::Leader self{
      .seat = {.node_id = "a", .host = "here", .address = "127.0.0.1", .port = 29'500}, .term = 0};

  const auto begun = std::chrono::steady_clock::now();
  place.keep(self, [](rendezvous::Upkeep, const rendezvous::Leader&) {});

  REQUIRE(run_until(6));
  CHECK(std::chrono::steady_clock::now() - begun >= 2 * interval);
  CHECK(testing::count_of(log.text(), "new nodes do not find the job as long as this lasts") == 1);
  place.stop();
}
