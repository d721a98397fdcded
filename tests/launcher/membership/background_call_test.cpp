// Every order in which a call can return, its limit pass and its owner go; no call waits for time.
#include "launcher/membership/background_call.h"

#include <asio/executor_work_guard.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/patience.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;

namespace {

// What is called hangs until it is let go. Outlives both sides, as the call's thread may.
struct Gate {
  std::promise<void> entered, open;
  std::shared_future<void> opened = open.get_future().share();
};
using GatePtr = std::shared_ptr<Gate>;

std::function<void()> through(const GatePtr& gate) {
  return [gate] {
    gate->entered.set_value();
    gate->opened.wait();
  };
}

const auto limit = ddprun::testing::patience(60s);

struct Caller {
  asio::io_context io;
  std::optional<BackgroundCall> call{std::in_place, io, "the file server"};
  std::vector<std::string> said;

  void start(std::function<void()> work, std::chrono::milliseconds within = limit) {
    call->start(std::move(work), within, [this](const std::string& why) { said.push_back(why); });
  }
  // Until `count` calls have ended. Kept alive by work, since a thread's answer comes from outside.
  bool run_until(std::size_t count) {
    const auto guard = asio::make_work_guard(io);
    const auto end = std::chrono::steady_clock::now() + limit;
    while (said.size() < count && std::chrono::steady_clock::now() < end) {
      io.restart();
      io.run_one_until(end);
    }
    return said.size() == count;
  }
  void run_what_is_ready() {
    io.restart();
    io.poll();
  }
};

}  // namespace

TEST_CASE("16.1: a call in the background says that it is done, or what it threw",
          "[launcher][background_call]") {
  Caller caller;
  bool done = false;
  caller.start([&] { done = true; });
  CHECK(caller.said.empty());  // From the loop alone.
  REQUIRE(caller.run_until(1));
  CHECK(done);
  caller.start([] { throw std::runtime_error("no such folder"); });
  REQUIRE(caller.run_until(2));
  CHECK(caller.said == std::vector<std::string>{"", "no such folder"});
}

TEST_CASE(
    "16.1: a call that hangs fails after its limit, and so does each next one until it returns",
    "[launcher][background_call]") {
  Caller caller;
  const auto gate = std::make_shared<Gate>();
  caller.start(through(gate), 1ms);
  gate->entered.get_future().wait();
  REQUIRE(caller.run_until(1));
  CHECK(caller.said.back() == "the file server does not answer within 1 ms");

  bool called = false;
  caller.start([&] { called = true; });
  REQUIRE(caller.run_until(2));
  CHECK(caller.said.back() == "the file server still does not answer");
  CHECK_FALSE(called);

  gate->open.set_value();
  // When its thread has let go is its own matter; until then the answer is the same.
  std::size_t calls = 2;
  while (caller.said.back() != "") {
    caller.start([&] { called = true; });
    REQUIRE(caller.run_until(++calls));
  }
  CHECK(called);
  // The one that hung has said nothing more.
  caller.run_what_is_ready();
  CHECK(caller.said.size() == calls);
}

TEST_CASE("16.1: nothing comes back to an owner that has gone", "[launcher][background_call]") {
  const auto gate = std::make_shared<Gate>();
  const bool returns_first = GENERATE(true, false);
  const bool hung = GENERATE(true, false);
  Caller caller;
  const auto returned = std::make_shared<std::promise<void>>();
  // Its destruction is the last that the thread does with the work.
  std::shared_ptr<void> last(nullptr, [returned](void*) { returned->set_value(); });
  caller.start([last = std::move(last), work = through(gate)] { work(); }, hung ? 1ms : limit);
  gate->entered.get_future().wait();
  if (hung) REQUIRE(caller.run_until(1));

  if (returns_first) {
    gate->open.set_value();
    returned->get_future().wait();
  }
  caller.call.reset();
  if (!returns_first) {
    gate->open.set_value();
    returned->get_future().wait();
  }
  caller.run_what_is_ready();
  CHECK(caller.said.size() == (hung ? 1 : 0));
}
