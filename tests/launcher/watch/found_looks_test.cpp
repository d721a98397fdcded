// Which launcher a watch takes for one that it has seen before, and which job for over.
#include "launcher/watch/found_looks.h"

#include <sys/stat.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read_until.hpp>
#include <asio/streambuf.hpp>
#include <asio/write.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "rendezvous/control/control_message.h"
#include "tests/launcher/status/listening.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::testing::Listening;
using ddprun::testing::patience;
using namespace std::chrono_literals;

namespace {

// A folder of launchers that all have this process's pid.
struct Launchers {
  Launchers() {
    ::chmod(folder.path().c_str(), 0700);
    ::setenv("DDPRUN_RUN_DIR", folder.path().c_str(), 1);
  }
  ~Launchers() { ::unsetenv("DDPRUN_RUN_DIR"); }

  // One that was started then takes the place of the one before.
  void start(std::int64_t started_unix_s, const std::string& host = "here") {
    const JobSnapshot job{.run_id = "night",
                          .host = host,
                          .launcher_pid = ::getpid(),
                          .started_unix_s = started_unix_s};
    end();
    ::mkdir(folder.path().c_str(), 0700);  // The last launcher that leaves removes it.
    launcher = std::make_unique<Listening>(folder.path(),
                                           [job](const ddprun::rendezvous::Query&) { return job; });
  }
  void end() { launcher.reset(); }

  ddprun::testing::TemporaryFolder folder;
  std::unique_ptr<Listening> launcher;
};

// A coordinator at a port of its own, which answers when it is told to; else it only listens.
struct Coordinator {
  WatchCommand command() const {
    WatchCommand command;
    command.job = "night";
    command.endpoint_host = "127.0.0.1";
    command.endpoint_port = acceptor.local_endpoint().port();
    return command;
  }

  // Answers a look, behind those that were left without an answer.
  void answer(FoundLooks& found, FoundLooks::Time now) {
    std::thread serving([this] {
      for (++unanswered; unanswered > 0; --unanswered) serve_one();
    });
    found.look(patience(5s), now);
    serving.join();
  }
  void keep_silent(FoundLooks& found, FoundLooks::Time now) {
    ++unanswered;
    found.look(50ms, now);
  }
  void serve_one() {
    asio::ip::tcp::socket socket = acceptor.accept();
    asio::streambuf request;
    asio::error_code ignored;
    asio::read_until(socket, request, '\n', ignored);
    const JobSnapshot job{.run_id = "night", .host = "there", .launcher_pid = 7};
    for (const auto& told : ddprun::rendezvous::told_pieces(1, to_json(job))) {
      asio::write(socket, asio::buffer(ddprun::rendezvous::encode(told)), ignored);
    }
  }

  asio::io_context io;
  asio::ip::tcp::acceptor acceptor{io, {asio::ip::address_v4::loopback(), 0}};
  int unanswered = 0;
};

WatchCommand called(const std::string& job) {
  WatchCommand command;
  command.job = job;
  return command;
}

}  // namespace

TEST_CASE("17.2: a launcher is compared with itself, and not with an earlier one of its pid",
          "[watch]") {
  Launchers launchers;
  FoundLooks found(called(""));
  const auto look_before = [&] {
    found.look(patience(5s));
    REQUIRE(found.looks().size() == 1);
    return found.looks()[0].before;
  };
  launchers.start(100);
  CHECK_FALSE(look_before());
  CHECK(look_before());

  launchers.start(200);
  CHECK_FALSE(look_before());
  CHECK(look_before());
  launchers.start(200, "elsewhere");  // Where an endpoint answers, it may be on another machine.
  CHECK_FALSE(look_before());
}

TEST_CASE("17.2: an endpoint's late answer is no end of its job, but a long silence is",
          "[watch]") {
  Coordinator coordinator;
  FoundLooks found(coordinator.command());
  CHECK_THROWS_AS(coordinator.keep_silent(found, {}), RemoteJobError);  // It may be no job at all.
  coordinator.answer(found, {});
  REQUIRE(found.looks().size() == 1);
  CHECK(found.notes().empty());

  const FoundLooks::Time begin{1h};
  coordinator.keep_silent(found, begin);
  CHECK(found.looks().empty());
  REQUIRE(found.notes().size() == 1);
  CHECK(ddprun::testing::contains(found.notes()[0], "does not answer"));
  CHECK(found.found());
  coordinator.answer(found, begin + 59s);
  CHECK(found.looks().size() == 1);

  coordinator.keep_silent(found, begin + 60s);
  coordinator.keep_silent(found, begin + 119s);
  CHECK(found.found());
  coordinator.keep_silent(found, begin + 120s);
  CHECK_FALSE(found.found());
}

TEST_CASE("17.2: where nobody listens any more the job is over, but not at once", "[watch]") {
  Coordinator coordinator;
  FoundLooks found(coordinator.command());
  const FoundLooks::Time begin{1h};
  coordinator.answer(found, begin);
  coordinator.acceptor.close();

  found.look(patience(5s), begin + 1s);
  REQUIRE(found.notes().size() == 1);
  CHECK(ddprun::testing::contains(found.notes()[0], "nobody listens at 127.0.0.1:"));
  found.look(patience(5s), begin + 3s);
  CHECK(found.found());
  found.look(patience(5s), begin + 4s);
  CHECK_FALSE(found.found());
}

TEST_CASE("17.2: a silent launcher is no job that an earlier one of its pid had", "[watch]") {
  Launchers launchers;
  FoundLooks found(called("night"));
  launchers.start(100);
  found.look(patience(5s));
  REQUIRE(found.looks().size() == 1);
  launchers.end();
  ::mkdir(launchers.folder.path().c_str(), 0700);

  const auto silent = ddprun::testing::unserved_socket(launchers.folder / "1-silent", true);
  found.look(50ms);

  CHECK(found.notes().empty());
  CHECK_FALSE(found.found());
}
