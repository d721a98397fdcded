// What nodes that came after the first attempt can and cannot cost a job (newcomers.h).
#include <csignal>

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

TEST_CASE("15.5: after the second newcomer that goes the next attempt waits, as after a failure",
          "[rendezvous][job]") {
  JobLimits limits = elastic_job(1, 4, 1);
  limits.restarts.backoff_first = 500ms;
  Scenario s(limits);
  s.join(1);
  s.join(2);
  s.run_for(30'000ms, {1, 2});
  s.join(10);
  s.join(11);
  founders_reap(s);
  s.got<Stop>(1);

  const bool politely = GENERATE(true, false);
  const auto go = [&](PeerId peer) { politely ? s.say(peer, Leaving{SIGTERM}) : s.lose(peer); };
  go(10);
  CHECK(s.got_one<Stop>(1).why.ends_with("the others go on"));
  founders_reap(s);
  s.reap(10);
  s.reap(11);
  s.got<RoundStart>(1);
  go(11);
  s.reap(11);
  CHECK(s.got_one<Stop>(1).why.find("the others go on in ") != std::string::npos);
  founders_reap(s);
  CHECK(s.got<RoundStart>(1).empty());
  s.pass(500ms);
  s.tick();

  CHECK(s.got_one<RoundStart>(1).group_world_size == 2);
}

TEST_CASE("15.5: who is taken in and goes before the round begins has cost a stop, too",
          "[rendezvous][job]") {
  Scenario s = growing(9);
  const bool under_way = GENERATE(true, false);  // The stop of another.
  for (const PeerId peer : {10, 11}) {
    if (under_way) s.fail(1);
    s.join(peer);
    if (under_way) {
      founders_reap(s);  // It is in the next round, and goes as soon as that has begun.
      s.lose(peer);
    } else {
      s.lose(peer);
    }
    founders_reap(s);
  }
  s.got<Stop>(1);

  s.join(12);

  CHECK(s.got<Stop>(1).empty());
  CHECK(s.got_one<Waiting>(12).text.find("did not stay") != std::string::npos);
}

TEST_CASE("15.5: newcomers stand by at a new round, too, unless it lacks nodes without them",
          "[rendezvous][job]") {
  JobLimits limits = elastic_job(2, 4, 3);
  Scenario s(limits);
  s.join(1);
  s.join(2);
  s.run_for(30'000ms, {1, 2});
  come_and_go(s, 10);
  come_and_go(s, 11);
  s.join(12);
  s.got<RoundStart>(1);
  SECTION("without them there are enough") {
    s.fail(1);
    founders_reap(s);
    CHECK(s.got<RoundStart>(1).back().group_world_size == 2);
    s.run_for(20'000ms, {1, 2, 12});  // Its time goes on.
    founders_reap(s);
    CHECK(s.got<RoundStart>(12).size() == 1);
  }
  SECTION("there are not") {
    s.lose(2);
    s.reap(1);
    s.run_for(30'000ms, {1, 12});
    CHECK(s.got<RoundStart>(12).size() == 1);
  }
}

TEST_CASE("15.5: a newcomer that says goodbye and closes its connection has gone once",
          "[rendezvous][job]") {
  Scenario s = growing(1);
  s.join(10);
  founders_reap(s);
  s.say(10, Leaving{SIGTERM});
  s.reap(10);
  s.lose(10);
  founders_reap(s);
  s.got<Stop>(1);

  s.join(11);

  CHECK(s.got<Stop>(1).size() == 1);  // It is taken in: one loss is covered.
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
  CHECK(s.got_one<Finish>(2).cause->host == "host1");
}

TEST_CASE("newcomers alone ask for nothing of a job", "[rendezvous][job]") {
  Scenario s = growing(3);
  s.join(3);
  s.join(4);
  founders_reap(s);

  s.ask_again(3);
  s.ask_again(4);
  s.fail(1);  // Because they are gone.
  founders_reap(s);
  s.reap(4);

  CHECK_FALSE(s.over);
}

TEST_CASE("a newcomer's wish to be queued again is forgotten with its attempt",
          "[rendezvous][job]") {
  Scenario s = growing(3);
  s.join(3);
  founders_reap(s);
  s.ask_again(3);
  founders_reap(s);

  s.fail(1);
  s.ask_again(2);  // Its workers end so because those of 1 did.
  founders_reap(s);

  CHECK_FALSE(s.over);
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
