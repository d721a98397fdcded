// When a long wait is told of: a table of times, without waiting.
#include "rendezvous/long_wait.h"

#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

TEST_CASE("14.17: a long wait is told of after 10 s, and then each minute", "[long_wait]") {
  std::vector<std::chrono::milliseconds> told;
  const LongWait::TimePoint start{1000s};
  LongWait wait({.tell =
                     [&](std::chrono::milliseconds waited, const std::string& problem) {
                       CHECK(problem == "rank 3 did not come yet");
                       told.push_back(waited);
                     }},
                start);

  CHECK(wait.next() == start + 10s);
  for (auto time = 0ms; time <= 200s; time += 500ms) {
    if (wait.is_due(start + time)) wait.tell(start + time, "rank 3 did not come yet");
  }

  CHECK(told == std::vector<std::chrono::milliseconds>{10s, 70s, 130s, 190s});
}

TEST_CASE("who looks late says so once, and keeps the rhythm", "[long_wait]") {
  std::vector<std::chrono::milliseconds> told;
  const LongWait::TimePoint start{1000s};
  LongWait wait({.tell = [&](auto waited, const std::string&) { told.push_back(waited); }}, start);

  REQUIRE(wait.is_due(start + 135s));
  wait.tell(start + 135s + 321ms, "");

  CHECK(told == std::vector<std::chrono::milliseconds>{135s});
  CHECK(wait.next() == start + 190s);
}

TEST_CASE("without anybody to tell nothing is ever due", "[long_wait]") {
  const LongWait wait({}, LongWait::TimePoint{});
  CHECK_FALSE(wait.is_due(LongWait::TimePoint{} + 24h * 365));
}
