// How a job ends, and that nothing that is said late ends it otherwise, or not at all.
#include <csignal>

#include "rendezvous/job/job.h"
#include "tests/rendezvous/job/job_scenario.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

TEST_CASE("a signal after the verdict changes nothing of it", "[rendezvous][job]") {
  Scenario s = two_running(0);
  s.fail(2, {.rank = 3, .exit_code = 42});

  s.say(1, Leaving{SIGINT});
  CHECK_FALSE(s.over);  // Not before the workers are gone.
  s.reap(1);
  s.reap(2);

  CHECK(s.over == 42);
  CHECK(s.got_one<Finish>(2).cause->rank == 3);
}

TEST_CASE("workers that succeed while the others are stopped make no success of a failure",
          "[rendezvous][job]") {
  Scenario s = two_running(0);
  s.fail(1);
  s.reap(1);
  s.succeed(2);  // It was on its way.
  CHECK_FALSE(s.over);
  s.reap(2);

  CHECK(s.over == 137);
}

TEST_CASE("what a node says or does after the end is not heard", "[rendezvous][job]") {
  Scenario s(elastic_job(1, 2, 3));
  s.join(1);
  s.join(2);
  s.succeed(1);
  s.succeed(2);
  REQUIRE(s.got_one<Finish>(1).exit_status == 0);

  s.fail(2);
  s.say(2, Leaving{SIGTERM});
  s.lose(2);
  s.lose(1);

  CHECK(s.got<Finish>(2).size() == 1);  // The one that all got.
  CHECK(s.got<Finish>(1).empty());
  CHECK(s.got<Stop>(1).empty());
  CHECK(s.over == 0);
  CHECK_FALSE(s.due_in());
}

TEST_CASE("Ctrl-C on a node of an elastic job ends all of it while it runs, else that node alone",
          "[rendezvous][job]") {
  Scenario s(elastic_job(2, 3, 3));
  s.join(1);
  s.join(9);
  s.say(9, Leaving{SIGINT});
  CHECK(s.got_one<Finish>(9).exit_status == 130);
  s.lose(9);
  for (const PeerId peer : {2, 3, 4}) s.join(peer);
  s.say(4, Leaving{SIGINT});  // A spare.
  CHECK(s.got_one<Finish>(4).exit_status == 130);
  CHECK(s.got<Stop>(1).empty());

  s.say(2, Leaving{SIGINT});
  CHECK(s.got_one<Stop>(1).exit_status == 130);
  CHECK(s.got<Stop>(4).empty());  // It has nothing to stop.
  for (const PeerId peer : {1, 2, 3}) s.reap(peer);

  CHECK(s.over == 130);
}

TEST_CASE("15.5: who is waited for is dropped when the time is up, and nobody else",
          "[rendezvous][job]") {
  SECTION("not a spare, nor by what was said of another attempt") {
    Scenario s(elastic_job(2, 2, 1));
    s.mute = {2};
    for (const PeerId peer : {1, 2, 3}) s.join(peer);
    s.say(2, Started{7});
    s.run_for(30'000ms, {1, 2, 3});
    CHECK(s.closed == std::vector<PeerId>{2});
  }
  SECTION("in the second attempt as in the first") {
    Scenario s = two_running(1);
    s.mute = {2};
    s.fail(1);
    s.reap(1);
    s.reap(2);
    REQUIRE(s.got<RoundStart>(2).size() == 1);
    s.run_for(30'000ms, {1, 2});
    CHECK(s.closed == std::vector<PeerId>{2});
  }
  SECTION("whose workers are not gone") {
    Scenario s(static_job(3, 1));
    for (const PeerId peer : {1, 2, 3}) s.join(peer);
    s.fail(1);
    s.reap(2);
    s.run_for(120'000ms, {1, 2, 3});
    CHECK(s.closed == std::vector<PeerId>{3});
  }
}
