// What a node hears before it has seen that its arbiter is that of its job.
#include "launcher/membership/job_arbiter.h"

#include <asio/executor_work_guard.hpp>
#include <chrono>

#include "rendezvous/arbiter/file_arbiter.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace std::chrono_literals;

namespace {

rendezvous::ControlMessage round_start(int attempt) {
  return rendezvous::RoundStart{.attempt = attempt};
}

// A node with --tie-breaker, whose job's file is not there yet.
struct Node {
  testing::TemporaryFolder folder;
  asio::io_context io;
  LaunchOptions options = [this] {
    LaunchOptions given;
    given.tie_breaker = folder / "tie";
    given.run_id = "job";
    return given;
  }();
  std::vector<int> heard;  // Attempts.
  bool last_heard = false;
  JobArbiter arbiter{io,
                     options,
                     {.on_word = {},
                      .on_message =
                          [this](const rendezvous::ControlMessage& message) {
                            if (const auto* round = std::get_if<rendezvous::RoundStart>(&message)) {
                              heard.push_back(round->attempt);
                            }
                            last_heard =
                                last_heard || std::holds_alternative<rendezvous::Moved>(message);
                          },
                      .on_another = [](const std::string& why) { FAIL(why); }}};

  Node() {
    arbiter.open();
    arbiter.heard_of("7f3a");
  }

  // Its file appears, and all that was kept is told.
  void see_job() {
    REQUIRE(arbiter.holds_back(rendezvous::Moved{}));
    rendezvous::FileArbiter(options.tie_breaker, options.run_id).found("7f3a");
    const auto guard = asio::make_work_guard(io);
    const auto end = std::chrono::steady_clock::now() + testing::patience(60s);
    while (!last_heard && std::chrono::steady_clock::now() < end) io.run_one_until(end);
    REQUIRE(last_heard);
    CHECK_FALSE(arbiter.holds_back(round_start(9)));
  }
};

}  // namespace

TEST_CASE("16.1: what is heard before the arbiter knows the job is told in its order",
          "[launcher][arbiter]") {
  Node node;
  REQUIRE(node.arbiter.holds_back(round_start(1)));
  REQUIRE(node.arbiter.holds_back(round_start(2)));
  node.see_job();
  CHECK(node.heard == std::vector<int>{1, 2});
}

TEST_CASE("16.1: a round that a coordinator began which is gone is not told to its next one's node",
          "[launcher][arbiter]") {
  Node node;
  REQUIRE(node.arbiter.holds_back(round_start(1)));
  node.arbiter.connects();
  REQUIRE(node.arbiter.holds_back(round_start(2)));
  node.see_job();
  CHECK(node.heard == std::vector<int>{2});
}
