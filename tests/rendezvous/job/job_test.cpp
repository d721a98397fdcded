// The job-wide verdict as scenarios: messages in, messages out, time as a number.
#include "rendezvous/job/job.h"

#include <csignal>

#include "tests/rendezvous/job/job_scenario.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

JobLimits with_backoff() {
  JobLimits limits = static_job(2, 9);
  limits.restarts.backoff_first = 500ms;
  return limits;
}

}  // namespace

TEST_CASE("nodes start together once all have joined", "[rendezvous][job]") {
  Scenario s(static_job(2, 0));

  s.join(2);
  CHECK(s.got_one<Waiting>(2).text.find("node 0") != std::string::npos);
  CHECK(s.got<RoundStart>(2).empty());
  s.join(1);

  CHECK(s.got<Succession>(1).empty());  // Nobody takes over a job that was not to be.
  const RoundStart first = s.got_one<RoundStart>(1);
  const RoundStart second = s.got_one<RoundStart>(2);
  CHECK(first.rank_base == 0);
  CHECK(second.rank_base == 2);
  CHECK(second.world_size == 4);
  CHECK(second.master_addr == "10.0.0.1");
}

TEST_CASE("the job ends with 0 when the workers of all nodes succeeded, however late the last",
          "[rendezvous][job]") {
  Scenario s = two_running(0);

  s.succeed(2);
  s.run_for(3'600'000ms, {1, 2});
  CHECK_FALSE(s.over);
  s.succeed(1);

  CHECK(s.over == 0);
  CHECK(s.got_one<Finish>(1).exit_status == 0);
  CHECK(s.got_one<Finish>(2).exit_status == 0);
}

TEST_CASE("the first failure anywhere stops the attempt everywhere, and all start again together",
          "[rendezvous][job]") {
  Scenario s = two_running(1);

  s.fail(2);
  const Stop stop = s.got_one<Stop>(1);
  CHECK_FALSE(stop.final_verdict);
  CHECK(stop.why.find("rank 1 (pid 77 on host2) was killed by SIGKILL") != std::string::npos);
  s.reap(2);
  CHECK(s.got<RoundStart>(2).empty());
  s.reap(1);

  CHECK(s.got_one<RoundStart>(1).attempt == 1);
  CHECK(s.got_one<RoundStart>(2).attempt == 1);
  CHECK(s.attempts == std::vector<int>{0, 1});
}

TEST_CASE("without restarts left all nodes end with the first cause and its exit code",
          "[rendezvous][job]") {
  Scenario s = two_running(0);

  s.fail(2, {.rank = 3, .exit_code = 42});
  s.fail(1, {.rank = 0, .signal = 6});  // Came later: a consequence.
  CHECK(s.got_one<Stop>(1).exit_status == 42);
  s.reap(1);
  s.reap(2);

  for (const PeerId peer : {1, 2}) {
    const Finish finish = s.got_one<Finish>(peer);
    CHECK(finish.exit_status == 42);
    REQUIRE(finish.cause);
    CHECK(finish.cause->rank == 3);
    CHECK(finish.cause->host == "host2");
    CHECK(finish.cause->node_rank == 1);
  }
  CHECK(s.over == 42);
}

TEST_CASE("14.2: an error that another node had recorded long before becomes the first cause",
          "[rendezvous][job]") {
  Scenario s = two_running(0);

  s.pass(60'000ms);
  s.fail(2, {.rank = 3, .pid = 9, .exit_code = 42, .age_ms = 100});
  CHECK(s.got_one<Stop>(1).exit_status == 42);
  s.pass(200ms);
  s.say(1, Reaped{0, FirstCause{.rank = 0, .pid = 7, .message = "KeyError", .age_ms = 1'700}});
  s.reap(2);

  for (const PeerId peer : {1, 2}) {
    const Finish finish = s.got_one<Finish>(peer);
    CHECK(finish.exit_status == 42);  // As it was announced.
    REQUIRE(finish.cause);
    CHECK(finish.cause->rank == 0);
    CHECK(finish.cause->host == "host1");
    CHECK(finish.cause->message == "KeyError");
    CHECK(exit_status_of(*finish.cause) == 42);
    CHECK(finish.cause->ended_first.find("rank 3 (pid 9 on host2)") == 0);
  }
}

TEST_CASE("who lost a peer where another node's workers had ended with 0 is told to look there",
          "[rendezvous][job]") {
  for (const bool of_a_peer : {true, false}) {
    INFO(of_a_peer);
    Scenario s = two_running(0);
    s.succeed(2);
    s.fail(1, {.rank = 0, .exit_code = 1, .advice = "its own", .of_a_peer = of_a_peer});
    s.reap(1);
    s.reap(2);

    const Finish finish = s.got_one<Finish>(1);
    REQUIRE(finish.cause);
    CHECK(finish.cause->rank == 0);
    CHECK(finish.cause->advice ==
          (of_a_peer ? advice_on_early_end("the workers of node 1 (host2)") : "its own"));
  }
}

TEST_CASE("17.1: a wrong command ends the job also when another node is heard first",
          "[rendezvous][job]") {
  const FirstCause wrong{
      .rank = 0, .exit_code = exit_status::usage, .age_ms = 5, .usage_error = true};
  for (const bool in_time : {true, false}) {
    INFO(in_time);
    Scenario s = two_running(3);
    s.fail(2, {.rank = 3, .exit_code = 1});
    if (in_time) s.say(1, WorkerFailed{0, wrong});  // Before it has heard of the stop.
    s.say(1, Reaped{0, wrong});
    s.reap(2);
    CHECK(s.over == exit_status::usage);
    CHECK(s.got_one<Finish>(2).cause->usage_error);
  }
}

TEST_CASE("an error that a message's way may explain does not change the first cause",
          "[rendezvous][job]") {
  Scenario s = two_running(0);

  s.pass(60'000ms);
  s.fail(2, {.rank = 3, .exit_code = 42});
  s.say(1, WorkerFailed{0, {.rank = 1, .exit_code = 1, .age_ms = 900}});
  s.say(1, Reaped{0, FirstCause{.rank = 0, .message = "KeyError", .age_ms = 1'000}});
  s.reap(2);

  CHECK(s.got_one<Finish>(1).cause->rank == 3);
}

TEST_CASE("no error is older than its attempt, and none outranks a lost node or a signal",
          "[rendezvous][job]") {
  const Reaped old{0, FirstCause{.rank = 0, .age_ms = INT64_MAX}};
  SECTION("its attempt") {
    Scenario s = two_running(0);
    s.pass(900ms);
    s.fail(2, {.rank = 3, .exit_code = 42});
    s.say(1, old);
    s.reap(2);
    CHECK(s.got_one<Finish>(1).cause->rank == 3);
  }
  SECTION("a lost node") {
    Scenario s = two_running(0);
    s.pass(60'000ms);
    s.lose(2);
    s.say(1, old);
    CHECK(s.got_one<Finish>(1).cause->kind == FirstCause::Kind::NodeLost);
  }
  SECTION("a signal") {
    Scenario s = two_running(0);
    s.pass(60'000ms);
    s.say(2, Leaving{SIGTERM});
    s.say(1, old);
    s.reap(2);
    CHECK(s.got_one<Finish>(1).cause->kind == FirstCause::Kind::Interrupted);
  }
}

TEST_CASE("the restart budget is one for the whole job", "[rendezvous][job]") {
  Scenario s = two_running(2);

  for (const PeerId failing : {1, 2, 1}) {
    CHECK_FALSE(s.over);
    s.fail(failing);
    s.reap(1);
    s.reap(2);
  }

  CHECK(s.attempts == std::vector<int>{0, 1, 2});
  CHECK(s.over == 137);
}

TEST_CASE("the second restart in a row waits out its backoff", "[rendezvous][job]") {
  Scenario s(with_backoff());
  s.join(1);
  s.join(2);
  s.got<RoundStart>(1);
  const auto fail_and_reap = [&] {
    s.fail(2, {.rank = 1, .pid = 77, .exit_code = 1});
    s.reap(1);
    s.reap(2);
  };
  fail_and_reap();
  CHECK(s.got<RoundStart>(1).size() == 1);

  fail_and_reap();
  CHECK(s.got<RoundStart>(1).empty());
  s.pass(249ms);
  s.tick();
  CHECK(s.got<RoundStart>(1).empty());
  s.pass(251ms);
  s.tick();
  CHECK(s.got_one<RoundStart>(1).attempt == 2);
  CHECK(s.got<RoundStart>(2).size() == 3);
}

TEST_CASE("how long an attempt ran is counted from its own start, and told with its number",
          "[rendezvous][job]") {
  JobLimits limits = with_backoff();
  limits.restarts.restarts_max = 2;
  Scenario s(limits);
  s.join(1);
  s.join(2);
  s.run_for(3'600'000ms, {1, 2});  // This one was healthy.
  const auto fail_after_2_s = [&] {
    s.run_for(2'000ms, {1, 2});
    s.got<RoundStart>(1);
    s.fail(2, {.rank = 1, .pid = 77, .exit_code = 1});
    s.reap(1);
    s.reap(2);
    return s.got<RoundStart>(1).size() == 1;  // At once.
  };
  CHECK(fail_after_2_s());
  CHECK_FALSE(fail_after_2_s());
  fail_after_2_s();

  CHECK(s.got_one<Finish>(1).cause->attempt == 2);
}

TEST_CASE("Ctrl-C during the backoff ends the job", "[rendezvous][job]") {
  Scenario s(with_backoff());
  s.join(1);
  s.join(2);
  for (int i = 0; i < 2; ++i) {
    s.fail(2, {.rank = 1, .pid = 77, .exit_code = 1});
    s.reap(1);
    s.reap(2);
  }
  s.say(1, Leaving{2});

  CHECK(s.over == 130);
  CHECK(s.got_one<Finish>(2).exit_status == 130);
}

TEST_CASE("a job that makes no progress ends with restarts left", "[rendezvous][job]") {
  JobLimits limits = static_job(1, 9);
  limits.restarts.same_failures_max = 2;
  Scenario s(limits);
  s.join(1);
  for (int i = 0; i < 2; ++i) {
    s.fail(1);
    s.reap(1);
    s.pass(500ms);
    s.tick();
  }

  CHECK(s.over == 137);
  CHECK(s.attempts.size() == 2);
}

TEST_CASE("a program that cannot be started is not tried again", "[rendezvous][job]") {
  Scenario s = two_running(5);

  s.fail(1, {.kind = FirstCause::Kind::StartFailed, .exit_code = 127, .retriable = false});
  s.reap(1);
  s.reap(2);

  CHECK(s.over == 127);
}

TEST_CASE("a report about an attempt that is over changes nothing", "[rendezvous][job]") {
  Scenario s = two_running(3);
  s.fail(1);
  s.reap(1);
  s.reap(2);
  s.got<Stop>(1);

  s.say(1, WorkerFailed{0, {.rank = 1}});
  s.say(2, WorkersSucceeded{0});
  s.say(2, Reaped{0});

  CHECK(s.got<Stop>(1).empty());
  CHECK(s.attempts == std::vector<int>{0, 1});
}

TEST_CASE("a node that is lost ends the job when no restarts are left", "[rendezvous][job]") {
  Scenario s = two_running(0);

  s.lose(2);
  CHECK(s.got_one<Stop>(1).final_verdict);
  s.reap(1);

  const Finish finish = s.got_one<Finish>(1);
  CHECK(finish.exit_status == exit_status::node_lost);
  CHECK(finish.why == "node 1 (host2) was lost: it closed the connection");
  REQUIRE(finish.cause);
  CHECK(finish.cause->advice == advice_on_lost_node(false));
}

TEST_CASE("a static job with restarts left waits for a lost node to come back",
          "[rendezvous][job]") {
  Scenario s = two_running(1);
  s.lose(2);
  s.reap(1);
  s.got<Waiting>(1);
  s.run_for(100'000ms, {1});
  CHECK(s.got<Waiting>(1).back().text.find("waiting for node 1") != std::string::npos);

  s.join(3, 1);  // The same node rank, a new agent.

  CHECK(s.got_one<RoundStart>(1).attempt == 1);
  CHECK(s.got_one<RoundStart>(3).group_rank == 1);
}

TEST_CASE("the wait for a lost node ends with the join timeout, and asks for another turn",
          "[rendezvous][job]") {
  Scenario s = two_running(1);
  s.lose(2);
  s.reap(1);

  s.run_for(601'000ms, {1});

  CHECK(s.over == exit_status::preempted);
}

TEST_CASE("a node that comes back while the others still stop takes part in the next attempt",
          "[rendezvous][job]") {
  Scenario s = two_running(1);
  s.lose(2);
  s.join(3, 1);
  CHECK(s.got<RoundStart>(3).empty());

  s.reap(1);

  CHECK(s.got_one<RoundStart>(3).attempt == 1);
}

TEST_CASE("losing a node whose workers had succeeded is no failure", "[rendezvous][job]") {
  Scenario s = two_running(0);
  s.succeed(2);

  s.lose(2);
  CHECK(s.got<Stop>(1).empty());
  s.succeed(1);

  CHECK(s.over == 0);
}

TEST_CASE("a silent node is lost after the heartbeat timeout", "[rendezvous][job]") {
  Scenario s = two_running(0);

  s.run_for(4'000ms, {1});
  CHECK(s.got<Stop>(1).empty());
  CHECK(s.got<Heartbeat>(2).size() == 4);
  s.run_for(1'000ms, {1});

  CHECK(s.got_one<Stop>(1).why.find("nothing heard from it for 5 s") != std::string::npos);
  CHECK(s.got_one<Finish>(2).exit_status == exit_status::node_lost);  // Should it wake up again.
  CHECK(s.closed == std::vector<PeerId>{2});
}

TEST_CASE("a coordinator that was itself asleep blames nobody", "[rendezvous][job]") {
  Scenario s = two_running(0);

  s.pass(60s);
  s.tick();
  CHECK(s.got<Stop>(1).empty());
  s.run_for(4'000ms, {1});
  CHECK(s.got<Stop>(1).empty());
  s.run_for(1'000ms, {1});

  CHECK(s.got<Stop>(1).size() == 1);
}

TEST_CASE("a coordinator never counts the agent of its own process as lost", "[rendezvous][job]") {
  Scenario s = two_running(0);

  s.run_for(60s, {2});

  CHECK(s.got<Stop>(2).empty());
  CHECK(s.closed.empty());
}

TEST_CASE("16.3: a job that had begun elsewhere asks for another turn, too", "[rendezvous][job]") {
  for (const int heard_of : {-1, 3}) {
    Scenario s(elastic_job(2, 2, 1));
    Hello hello{.run_id = "job", .node_id = "node1", .host = "host1"};
    hello.elastic = true;
    hello.nnodes_min = hello.nnodes_max = 2;
    hello.attempt = heard_of;
    s.say(1, hello);

    s.run_for(601'000ms, {1});

    CHECK(s.over == (heard_of < 0 ? exit_status::rendezvous_timeout : exit_status::preempted));
  }
}

TEST_CASE("nodes that are missing at the join timeout are named on all nodes",
          "[rendezvous][job]") {
  Scenario s(static_job(3, 0));
  s.join(1);
  s.join(3);

  s.run_for(600'000ms, {1, 3});

  CHECK(s.over == exit_status::rendezvous_timeout);
  CHECK(s.got_one<Finish>(3).why.find("node 1 did not join within 600 s") != std::string::npos);
}

TEST_CASE("SIGTERM on one node of a static job ends it everywhere as preempted",
          "[rendezvous][job]") {
  Scenario s = two_running(3);

  s.say(2, Leaving{15});
  const Stop stop = s.got_one<Stop>(1);
  CHECK(stop.signal == 15);
  CHECK(stop.exit_status == exit_status::preempted);
  s.reap(1);
  s.reap(2);

  CHECK(s.over == exit_status::preempted);
}

TEST_CASE("a node that has lost its session ends a static job alone", "[rendezvous][job]") {
  const bool elastic = GENERATE(true, false);
  Scenario s = elastic ? Scenario(elastic_job(2, 2, 3)) : two_running(3);
  if (elastic) {
    s.join(1);
    s.join(2);
  }

  s.say(2, Leaving{.signal = SIGHUP, .starter_gone = true});
  const Stop stop = s.got_one<Stop>(1);
  CHECK(stop.why.find("node 1 (host2) lost the session that had started it") != std::string::npos);
  CHECK(stop.signal == (elastic ? SIGTERM : SIGHUP));
  s.reap(1);
  s.reap(2);

  CHECK(s.over == (elastic ? std::optional<int>() : std::optional(129)));
}

TEST_CASE("an unfit node of a static job ends it everywhere, with what is wrong there",
          "[rendezvous][job]") {
  Scenario s = two_running(3);
  s.fail(1);
  s.reap(1);
  s.say(2, Leaving{15, "its GPU is lost"});
  s.reap(2);

  CHECK(s.over == exit_status::preempted);
  const Finish finish = s.got_one<Finish>(1);
  CHECK(finish.why.find("node 1 (host2) is not fit for the job: its GPU is lost") !=
        std::string::npos);
  REQUIRE(finish.cause);
  CHECK(is_of_unfit_node(*finish.cause));
}

TEST_CASE("Ctrl-C sends SIGINT to the workers of all nodes", "[rendezvous][job]") {
  Scenario s = two_running(3);

  s.say(1, Leaving{2});

  CHECK(s.got_one<Stop>(2).signal == 2);
  CHECK(s.got_one<Stop>(1).exit_status == 130);
}

TEST_CASE("Ctrl-C while nodes are missing ends the wait everywhere", "[rendezvous][job]") {
  Scenario s(static_job(3, 0));
  s.join(1);
  s.join(2);

  s.say(2, Leaving{2});

  CHECK(s.got_one<Finish>(1).exit_status == 130);
  CHECK(s.over == 130);
}

TEST_CASE("a signal during a restart ends the job instead", "[rendezvous][job]") {
  Scenario s = two_running(3);
  s.fail(1);

  s.say(2, Leaving{15});
  CHECK_FALSE(s.over);  // Not before the workers are gone.
  s.reap(1);
  s.reap(2);

  CHECK(s.over == exit_status::preempted);
}

TEST_CASE("an elastic job goes on with the survivors of a lost node", "[rendezvous][job]") {
  Scenario s(elastic_job(1, 2, 1));
  s.join(1);
  s.join(2);
  s.got<RoundStart>(1);

  s.lose(2);
  s.reap(1);

  const RoundStart round = s.got_one<RoundStart>(1);
  CHECK(round.attempt == 1);
  CHECK(round.world_size == 2);
}

TEST_CASE("an elastic job grows when a node joins, without using a restart", "[rendezvous][job]") {
  Scenario s(elastic_job(1, 2, 0));
  s.join(1);
  s.run_for(30'000ms, {1});
  CHECK(s.got_one<RoundStart>(1).world_size == 2);

  s.join(2);
  CHECK_FALSE(s.got_one<Stop>(1).final_verdict);
  s.reap(1);

  CHECK(s.got_one<RoundStart>(1).world_size == 4);
  CHECK(s.got_one<RoundStart>(2).group_rank == 1);
}

TEST_CASE("an elastic job goes on without a preempted node, which ends with 75",
          "[rendezvous][job]") {
  Scenario s(elastic_job(1, 2, 0));
  s.join(1);
  s.join(2);
  s.got<RoundStart>(1);

  s.say(2, Leaving{15});
  s.reap(2);
  s.reap(1);

  CHECK(s.got_one<Finish>(2).exit_status == exit_status::preempted);
  CHECK(s.got_one<RoundStart>(1).world_size == 2);
  CHECK_FALSE(s.over);
}

TEST_CASE("workers that end with 75 before their agent hears of the stop do not end the job",
          "[rendezvous][job]") {
  Scenario s(elastic_job(1, 3, 0));
  s.join(1);
  s.join(2);
  s.run_for(30'000ms, {1, 2});
  s.got<RoundStart>(1);

  s.join(3);
  s.ask_again(2);
  s.reap(1);
  s.reap(2);

  CHECK_FALSE(s.over);
  CHECK(s.got_one<RoundStart>(1).group_world_size == 3);
}

TEST_CASE("workers that end with 75 end an elastic job, unless a node that leaves told them to",
          "[rendezvous][job]") {
  Scenario s(elastic_job(1, 3, 0));
  for (const PeerId peer : {1, 2, 3}) s.join(peer);
  s.got<RoundStart>(1);

  s.ask_again(2);
  CHECK_FALSE(s.got_one<Stop>(1).final_verdict);
  s.reap(1);
  s.reap(2);
  SECTION("it asks itself") {
    s.reap(3);
    CHECK(s.over == exit_status::preempted);
    CHECK(s.got_one<Finish>(1).cause->node_rank == 1);
  }
  SECTION("the goodbye comes late") {
    s.say(3, Leaving{15});
    s.reap(3);
    CHECK_FALSE(s.over);
    CHECK(s.got_one<Finish>(3).exit_status == exit_status::preempted);
    CHECK(s.got_one<RoundStart>(1).group_world_size == 2);
  }
  SECTION("another one is preempted when its workers are gone") {
    s.say(2, Leaving{15});
    s.reap(3);
    CHECK(s.over == exit_status::preempted);
  }
}

TEST_CASE("a node whose workers had succeeded leaves an elastic job without stopping the others",
          "[rendezvous][job]") {
  Scenario s(elastic_job(1, 2, 0));
  s.join(1);
  s.join(2);
  s.succeed(2);

  s.say(2, Leaving{15});
  CHECK(s.got_one<Finish>(2).exit_status == exit_status::preempted);
  s.lose(2);
  CHECK(s.got<Stop>(1).empty());
  s.succeed(1);

  CHECK(s.over == 0);
}

TEST_CASE("who comes when a node is done hears that the job is about to end", "[rendezvous][job]") {
  Scenario s(elastic_job(1, 3, 0));
  s.join(1);
  s.join(2);
  s.run_for(30'000ms, {1, 2});
  s.succeed(2);

  s.join(3);

  CHECK(s.got<Waiting>(3).back().text.find("the job is about to end") != std::string::npos);
}

TEST_CASE("a preempted host of the endpoint takes the elastic job with it", "[rendezvous][job]") {
  Scenario s(elastic_job(1, 2, 0));
  s.join(1);
  s.join(2);

  s.say(1, Leaving{15});

  CHECK(s.got_one<Stop>(2).final_verdict);
}

TEST_CASE("a spare stands by and replaces a lost node", "[rendezvous][job]") {
  Scenario s(elastic_job(2, 2, 1));
  for (const PeerId peer : {1, 2, 3}) s.join(peer);
  CHECK(s.got<RoundStart>(3).empty());
  const std::string why = s.got_one<Waiting>(3).text;  // 14.8: hears it.
  CHECK(why == "all places are taken; this node stands by as a spare");

  s.lose(2);
  s.reap(1);

  CHECK(s.got_one<RoundStart>(3).group_rank == 1);
}

TEST_CASE("an attempt that got further than all before it ends the row of failures",
          "[rendezvous][job]") {
  Scenario s(with_backoff());
  s.join(1);
  s.join(2);
  const auto attempt_that_came_to = [&](std::int64_t position) {
    s.got<RoundStart>(1);
    s.progress(position);
    s.fail(2, {.rank = 1, .pid = 77, .exit_code = 1});
    s.reap(1);
    s.reap(2);
    return s.got<RoundStart>(1).size() == 1;  // At once.
  };
  CHECK(attempt_that_came_to(100));
  CHECK(attempt_that_came_to(120));
  CHECK(attempt_that_came_to(121));

  CHECK_FALSE(attempt_that_came_to(121));  // Repeated what was there, and no more.
}

TEST_CASE("an elastic job waits for another node however the one below MIN went",
          "[rendezvous][job]") {
  const bool politely = GENERATE(true, false);
  Scenario s(elastic_job(2, 3, 1));
  s.join(1);
  s.join(2);
  s.run_for(30'000ms, {1, 2});
  s.got<RoundStart>(1);

  if (politely) {
    s.say(2, Leaving{15});
    s.reap(2);
  } else {
    s.lose(2);
  }
  s.reap(1);
  CHECK_FALSE(s.over);
  CHECK(s.got<Waiting>(1).back().text.find("waiting for 1 more node") == 0);
  s.join(3);

  CHECK(s.got_one<RoundStart>(1).attempt == 1);
  CHECK(s.got_one<RoundStart>(3).world_size == 4);
}

TEST_CASE("14.8: who did not come back is named when the wait for others ends",
          "[rendezvous][job]") {
  const bool politely = GENERATE(true, false);
  Scenario s(elastic_job(2, 2, 1));
  s.join(1);
  s.join(2);
  if (politely) {
    s.say(2, Leaving{15});
    s.reap(2);
  }
  s.lose(2);
  s.reap(1);

  s.run_for(601'000ms, {1});

  CHECK(s.over == exit_status::preempted);
  const Finish finish = s.got_one<Finish>(1);
  INFO(finish.why);
  CHECK(finish.why.find("1 more node did not join within 600 s") == 0);
  CHECK(finish.why.ends_with(politely ? "; node 1 (host2) left after SIGTERM"
                                      : "; node 1 (host2) was lost"));
  CHECK(finish.cause.has_value() == !politely);
}

TEST_CASE("a silent member of an elastic job is told that it may come back", "[rendezvous][job]") {
  Scenario s(elastic_job(1, 2, 1));
  s.join(1);
  s.join(2);

  s.run_for(5'000ms, {1});

  CHECK(s.got_one<Finish>(2).may_rejoin);
  CHECK_FALSE(s.over);
}

TEST_CASE(
    "16.1: a silent member of a static job is told that it may come back, if that has a restart",
    "[rendezvous][job]") {
  const int restarts = GENERATE(0, 1);
  Scenario s(static_job(2, restarts));
  s.join(1);
  s.join(2);

  s.run_for(5'000ms, {1});

  const Finish finish = s.got_one<Finish>(2);
  CHECK(finish.exit_status == exit_status::node_lost);
  CHECK(finish.may_rejoin == (restarts > 0));
  CHECK(s.closed == std::vector<PeerId>{2});
}

TEST_CASE("15.5: a member that is silent about its workers is dropped, and says so nobody else",
          "[rendezvous][job]") {
  Scenario s(static_job(2, 1));
  s.mute = {2};
  s.join(1);
  s.join(2);

  s.run_for(29'000ms, {1, 2});
  CHECK(s.got<Stop>(1).empty());
  s.run_for(1'000ms, {1, 2});

  CHECK(s.got_one<Stop>(1).why.find("did not say within 30 s that its workers have started") !=
        std::string::npos);
  CHECK(s.got_one<Finish>(2).exit_status == exit_status::node_lost);
  CHECK(s.closed == std::vector<PeerId>{2});
}

TEST_CASE("15.5: a coordinator that slept gives members their time to start again",
          "[rendezvous][job]") {
  Scenario s(static_job(2, 1));
  s.mute = {2};
  s.join(1);
  s.join(2);

  s.pass(600s);
  s.tick();

  CHECK(s.got<Stop>(1).empty());
  s.run_for(29'000ms, {1, 2});
  CHECK(s.got<Stop>(1).empty());
  s.run_for(1'000ms, {1, 2});
  CHECK(s.got<Stop>(1).size() == 1);  // And no more than that.
}

TEST_CASE("15.5: a member that never says that its workers are gone does not hold up the others",
          "[rendezvous][job]") {
  Scenario s = two_running(1);
  s.got<Waiting>(1);
  s.fail(1);
  s.reap(1);

  s.run_for(119'000ms, {1, 2});
  CHECK(s.got<Waiting>(1).empty());
  s.run_for(1'000ms, {1, 2});

  CHECK(s.closed == std::vector<PeerId>{2});
  CHECK_FALSE(s.got<Waiting>(1).empty());  // For another node 1.
}

TEST_CASE("a coordinator sleeps until the first of what is due", "[rendezvous][job]") {
  JobLimits limits = elastic_job(2, 3, 1);
  limits.heartbeat_interval = 40s;
  limits.heartbeat_timeout = 500s;
  Scenario s(limits);
  s.mute = {2};
  s.join(1);
  CHECK(s.due_in() == FormingRound::repeat);  // The others hear again who is missing.
  s.join(2);
  s.pass(6s);
  s.tick();
  CHECK(s.due_in() == FormingRound::repeat - 6s);
  s.run_for(24s, {1, 2});
  REQUIRE(s.got<RoundStart>(2).size() == 1);
  CHECK(s.due_in() == 10s);  // The beat.
  s.run_for(10s, {1, 2});
  CHECK(s.due_in() == 20s);  // The workers of 2 have not started.
}

TEST_CASE("15.3: the store is for those that have workers now", "[rendezvous][job]") {
  Scenario s(elastic_job(2, 2, 1));
  s.join(1);
  CHECK(s.members.empty());
  s.join(2);
  s.join(3);
  CHECK(s.members == std::vector<PeerId>{1, 2});  // Not the spare.

  s.lose(2);
  CHECK(s.members == std::vector<PeerId>{1});
  s.reap(1);
  CHECK(s.members == std::vector<PeerId>{1, 3});
}
