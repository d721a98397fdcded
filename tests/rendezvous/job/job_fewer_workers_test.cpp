// A job whose nodes go on with fewer workers after a loss, and grow again: what the coordinator
// makes of what they say.
#include "tests/rendezvous/job/job_scenario.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

// Two nodes of two workers, of which the second's were fewer by one after a failure.
Scenario shrunken(int max_restarts = 1) {
  Scenario s = two_running(max_restarts);
  s.fail(2);
  s.reap(1, 2);
  s.reap(2, 1);
  return s;
}

}  // namespace

TEST_CASE("16.3: a node that has lost a worker goes on with those that are left",
          "[rendezvous][job]") {
  Scenario s = two_running(1);
  s.fail(1);
  s.reap(1, 1);
  s.reap(2, 2);

  const RoundStart first = s.got_one<RoundStart>(1);
  const RoundStart second = s.got_one<RoundStart>(2);
  CHECK(first.nproc == 1);
  CHECK(first.rank_base == 0);
  CHECK(second.nproc == 2);
  CHECK(second.rank_base == 1);
  for (const RoundStart& round : {first, second}) {
    CHECK(round.attempt == 1);
    CHECK(round.restarts_used == 1);
    CHECK(round.world_size == 3);
    CHECK(round.role_world_size == 3);
  }
}

TEST_CASE("16.3: a node that does not say how many goes on with as many as before",
          "[rendezvous][job]") {
  Scenario s = shrunken(2);
  CHECK(s.got_one<RoundStart>(2).nproc == 1);
  s.fail(1);
  s.reap(1);
  s.reap(2);
  CHECK(s.got_one<RoundStart>(2).nproc == 1);
}

TEST_CASE("16.3: a node that has replaced what it lost gets it back without a restart",
          "[rendezvous][job]") {
  Scenario s = shrunken();
  for (const PeerId peer : {1, 2}) s.got<Stop>(peer);
  for (const PeerId peer : {1, 2}) s.got<RoundStart>(peer);

  s.grow(2, 2, 1);
  const Stop stop = s.got_one<Stop>(1);
  CHECK_FALSE(stop.final_verdict);  // The only restart was used before.
  CHECK_FALSE(stop.cause);
  CHECK(stop.why ==
        "node 1 (host2) has replaced what it had lost; the job goes on with 2 workers there in "
        "place of 1");
  s.grow(2, 2, 1);  // Once is enough.
  CHECK(s.got<Stop>(1).empty());
  s.reap(1, 2);
  s.reap(2, 2);

  CHECK(s.got_one<RoundStart>(1).world_size == 4);
  const RoundStart grown = s.got_one<RoundStart>(2);
  CHECK(grown.nproc == 2);
  CHECK(grown.restarts_used == 1);  // In attempt 2.
  s.fail(1);
  CHECK(s.got_one<Stop>(1).cause);  // No restart is left, as before.
}

TEST_CASE("16.3: who wants to grow changes nothing in another round, at its end, or for nothing",
          "[rendezvous][job]") {
  Scenario s = shrunken();
  for (const PeerId peer : {1, 2}) s.got<Stop>(peer);
  SECTION("of the attempt before") { s.grow(2, 2, 0); }
  SECTION("no more than there are") { s.grow(2, 1, 1); }
  SECTION("another node is done") {
    s.succeed(1);
    s.grow(2, 2, 1);
  }
  SECTION("its own workers are done") {
    s.succeed(2);
    s.grow(2, 2, 1);
  }
  CHECK(s.got<Stop>(1).empty());
  CHECK(s.got<Stop>(2).empty());
}
