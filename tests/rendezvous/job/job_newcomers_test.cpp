// What nodes that came after the first attempt can and cannot cost a job (newcomers.h).
#include "rendezvous/job/job.h"
#include "tests/rendezvous/job/job_scenario.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

// Two founders of a job that may have four nodes.
Scenario growing(int max_restarts) {
  JobLimits limits = elastic_job(1, 4, max_restarts);
  Scenario s(limits);
  s.join(1);
  s.join(2);
  s.run_for(30'000ms, {1, 2});
  REQUIRE(s.got<RoundStart>(1).size() == 1);
  return s;
}

void founders_reap(Scenario& s) {
  s.reap(1);
  s.reap(2);
}

// One comes and goes again.
void come_and_go(Scenario& s, PeerId peer) {
  s.join(peer);
  founders_reap(s);
  s.lose(peer);
  founders_reap(s);
  s.pass(500ms);
  s.tick();
}

}  // namespace

TEST_CASE("15.5: who joins and drops uses up no restarts, and cannot do it fast",
          "[rendezvous][job]") {
  Scenario s = growing(1);
  PeerId stranger = 10;
  for (int second = 0; second < 20; ++second) {
    s.join(++stranger);
    founders_reap(s);
    s.lose(stranger);
    founders_reap(s);
    s.run_for(1'000ms, {1, 2});
  }
  CHECK(s.attempts.size() <= 8);  // 54 before.
  CHECK_FALSE(s.over);

  s.fail(1);  // The job's own restart is still there.
  CHECK_FALSE(s.got<Stop>(2).back().final_verdict);
}

TEST_CASE("15.5: of many that joined together and go one by one the second makes the rest stand by",
          "[rendezvous][job]") {
  Scenario s = growing(1);
  come_and_go(s, 10);  // The one that is covered.
  s.join(11);
  founders_reap(s);
  s.join(12);
  founders_reap(s);
  s.reap(11);
  const std::size_t attempts = s.attempts.size();

  s.lose(11);  // 12 stands by from here on.
  founders_reap(s);
  s.reap(12);
  s.pass(500ms);
  s.tick();
  CHECK(s.attempts.size() == attempts + 1);
  s.lose(12);

  CHECK(s.attempts.size() == attempts + 1);
  CHECK(s.got<RoundStart>(1).back().group_world_size == 2);
}

TEST_CASE("15.5: a node that comes later cannot end the job", "[rendezvous][job]") {
  Scenario s = growing(0);
  s.join(3);
  founders_reap(s);
  REQUIRE(s.got<RoundStart>(3).size() == 1);
  s.got<Stop>(1);

  SECTION("by a failure that nothing can heal") {
    s.fail(3, {.kind = FirstCause::Kind::StartFailed, .exit_code = 127, .retriable = false});
    CHECK(s.got_one<Finish>(3).exit_status == 127);
  }
  SECTION("by a failure that may come back") {
    s.fail(3);
    CHECK(s.got_one<Finish>(3).may_rejoin);
  }
  SECTION("by Ctrl-C") {
    s.say(3, Leaving{2});
    s.reap(3);
  }
  SECTION("by its silence") { s.run_for(5'000ms, {1, 2}); }
  SECTION("by a second hello") { s.join(3); }

  CHECK_FALSE(s.got_one<Stop>(1).final_verdict);
  founders_reap(s);
  s.pass(500ms);
  s.tick();
  CHECK_FALSE(s.over);
  CHECK(s.got<RoundStart>(1).back().group_world_size == 2);
}

TEST_CASE(
    "the job asks to be queued again, also where a newcomer's workers are the first to say so",
    "[rendezvous][job]") {
  Scenario s = growing(3);
  s.join(3);
  founders_reap(s);

  s.ask_again(3);
  s.ask_again(1);
  founders_reap(s);

  CHECK(s.over == exit_status::preempted);
}

TEST_CASE("a node that has settled in fails as the others do", "[rendezvous][job]") {
  Scenario s = growing(0);
  s.join(3);
  founders_reap(s);
  s.run_for(301'000ms, {1, 2, 3});

  s.fail(3);

  CHECK(s.got<Stop>(1).back().final_verdict);
}

TEST_CASE("a node that stands by hears for how long, and is taken in then", "[rendezvous][job]") {
  Scenario s = growing(0);
  come_and_go(s, 3);
  come_and_go(s, 3);  // The first one's cost is not paid for yet.
  s.got<RoundStart>(1);

  s.join(4);
  CHECK(s.got_one<Waiting>(4).text.find("stands by for 19 s") != std::string::npos);
  s.run_for(20'000ms, {1, 2, 4});
  founders_reap(s);

  CHECK(s.got<RoundStart>(4).size() == 1);
}

TEST_CASE("a newcomer that got no place makes nobody wait when it goes", "[rendezvous][job]") {
  Scenario s(elastic_job(1, 3, 0));
  s.join(1);
  s.join(2);
  s.run_for(30'000ms, {1, 2});
  come_and_go(s, 3);
  come_and_go(s, 3);
  s.join(4);
  s.join(5);
  s.run_for(20'000ms, {1, 2, 4, 5});
  founders_reap(s);
  REQUIRE(s.got<RoundStart>(4).size() == 1);
  REQUIRE(s.got<RoundStart>(5).empty());  // One place for two.

  s.lose(5);
  s.lose(4);
  founders_reap(s);
  s.pass(500ms);
  s.tick();

  s.join(6);  // Not the second loss before one is paid for.
  CHECK(s.got<RoundStart>(1).back().group_world_size == 2);
  founders_reap(s);
  CHECK(s.got<RoundStart>(6).size() == 1);
}

TEST_CASE("who says that it was a founder is none for a coordinator that has made all rounds",
          "[rendezvous][job]") {
  Scenario s = growing(3);
  s.come_back(3, 0, 9);
  CHECK(s.got_one<Finish>(3).may_rejoin);
  s.rejoin(4, 3);
  founders_reap(s);
  REQUIRE(s.got<RoundStart>(4).size() == 1);
  s.got<Stop>(1);

  s.fail(4);  // A newcomer's failure is its own.

  CHECK(s.got_one<Finish>(4).may_rejoin);
  CHECK_FALSE(s.got_one<Stop>(1).final_verdict);
}

TEST_CASE("a founder that was cut off comes back at once, whoever else came and went",
          "[rendezvous][job]") {
  Scenario s = growing(3);
  s.join(3);
  founders_reap(s);
  s.lose(3);
  founders_reap(s);
  s.pass(500ms);
  s.tick();

  s.lose(2);
  s.reap(1);
  s.rejoin(4, 2);
  s.reap(1);
  s.pass(60s);
  s.tick();

  CHECK(s.got<RoundStart>(4).size() == 1);
}
