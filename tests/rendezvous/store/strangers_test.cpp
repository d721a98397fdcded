// Who gives way, on a clock that the test turns.
#include "rendezvous/store/strangers.h"

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

const Strangers::TimePoint start{};

Strangers four() { return Strangers({.total_max = 4, .per_host_max = 2, .time_max = 10s}); }

}  // namespace

TEST_CASE("15.6: a host that is refused again and again is heard after a pause", "[strangers]") {
  Strangers strangers({.refused_at_once = 3, .refused_time = 10s, .pause = 250ms});
  const Strangers::TimePoint begin{1h};
  for (int times = 0; times < 3; ++times) {
    CHECK(strangers.pause("a", begin) == 0ms);  // A node with a wrong secret is told at once.
    strangers.note_refused("a", begin + times * 1s);
  }
  CHECK(strangers.pause("a", begin + 3s) == 250ms);
  CHECK(strangers.pause("b", begin + 3s) == 0ms);
  // All that wait are heard at one moment.
  CHECK(strangers.pause("a", begin + 3s + 1us) == 250ms);
  CHECK(strangers.pause("a", begin + 3s + 1ms) == 249ms);
  CHECK(strangers.pause("a", begin + 3s + 249ms) == 1ms);
  CHECK(strangers.pause("a", begin + 9s) == 250ms);
  // Forgotten with the time, whatever came meanwhile.
  strangers.note_refused("a", begin + 9s);
  CHECK(strangers.pause("a", begin + 10s) == 0ms);
  strangers.note_refused("a", begin + 10s);
  CHECK(strangers.pause("a", begin + 10s) == 0ms);

  // As many hosts as somebody can make up cost no more memory than this many.
  for (int host = 0; host < 5'000; ++host) strangers.note_refused(std::to_string(host), begin);
  CHECK(strangers.pause("4999", begin) == 0ms);
}

TEST_CASE("15.5: the oldest stranger gives way to a newcomer", "[strangers]") {
  Strangers strangers = four();
  for (Strangers::Id id = 1; id <= 4; ++id) {
    CHECK_FALSE(strangers.add(id, "host" + std::to_string(id), start));
  }
  CHECK(strangers.add(5, "host5", start) == 1);
  CHECK(strangers.add(6, "host6", start) == 2);
  CHECK(strangers.size() == 4);
}

TEST_CASE("15.5: a host with its share loses one of its own", "[strangers]") {
  Strangers strangers = four();
  CHECK_FALSE(strangers.add(1, "other", start));
  CHECK_FALSE(strangers.add(2, "flood", start));
  CHECK_FALSE(strangers.add(3, "flood", start));
  for (Strangers::Id id = 4; id < 1'000; ++id) {
    CHECK(strangers.add(id, "flood", start) == id - 2);
  }
  CHECK(strangers.size() == 3);
}

TEST_CASE("who has proved itself makes room", "[strangers]") {
  Strangers strangers = four();
  strangers.add(1, "a", start);
  strangers.add(2, "a", start);
  strangers.remove(1);
  strangers.remove(1);
  strangers.remove(99);
  CHECK_FALSE(strangers.add(3, "a", start));
  CHECK(strangers.add(4, "a", start) == 2);
}

TEST_CASE("a stranger's time is counted from when it came", "[strangers]") {
  Strangers strangers = four();
  CHECK_FALSE(strangers.deadline());
  strangers.add(1, "a", start);
  strangers.add(2, "b", start + 3s);
  CHECK(strangers.deadline() == start + 10s);

  CHECK(strangers.take_due(start + 9s).empty());
  CHECK(strangers.take_due(start + 10s) == std::vector<Strangers::Id>{1});
  CHECK(strangers.deadline() == start + 13s);
  CHECK(strangers.take_due(start + 1h) == std::vector<Strangers::Id>{2});
  CHECK(strangers.size() == 0);
}
