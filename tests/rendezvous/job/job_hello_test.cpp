// Nodes that come to a job, and what it does with each: admission.h and rank_claims.h at work.
#include "rendezvous/job/job.h"
#include "tests/rendezvous/job/job_scenario.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

TEST_CASE("16.1: a job that is begun anew counts on from what its nodes have heard of",
          "[rendezvous][job]") {
  Scenario s(elastic_job(2, 2, 1));
  s.join(1);
  const int heard_of = GENERATE(-1, 4, 2'147'483'647);
  s.say(2, Hello{.run_id = "job",
                 .node_id = "node2",
                 .host = "host2",
                 .elastic = true,
                 .nnodes_min = 2,
                 .nnodes_max = 2,
                 .attempt = heard_of});
  const RoundStart round = s.got_one<RoundStart>(1);
  CHECK(round.attempt == (heard_of == 4 ? 5 : 0));
  CHECK(round.founder);
}

TEST_CASE("a node of another job is refused and the job goes on", "[rendezvous][job]") {
  Scenario s(static_job(2, 0));
  s.join(1);

  s.join(2, 1, "other");

  CHECK(s.got_one<Refused>(2).exit_status == exit_status::refused);
  CHECK(s.closed == std::vector<PeerId>{2});
  CHECK(s.got<RoundStart>(1).empty());
  s.join(3, 1);
  CHECK(s.got<RoundStart>(1).size() == 1);
}

TEST_CASE("whoever does not begin with hello is refused", "[rendezvous][job]") {
  Scenario s(static_job(1, 0));

  s.say(7, Heartbeat{});

  CHECK(s.got_one<Refused>(7).reason == "the first message must be hello");
}

TEST_CASE("nobody joins a job that is ending", "[rendezvous][job]") {
  Scenario s = two_running(0);
  s.lose(2);

  s.join(3, 1);

  const auto refused = s.got_one<Refused>(3);
  CHECK(refused.reason.starts_with("this job is ending"));
  CHECK(refused.exit_status == exit_status::coordinator_lost);
}

TEST_CASE("a member that was cut off comes back before its silence was noticed",
          "[rendezvous][job]") {
  Scenario s(elastic_job(1, 2, 1));
  s.join(1);
  s.join(2);
  s.got<RoundStart>(1);

  s.rejoin(3, 2);
  CHECK(s.closed == std::vector<PeerId>{2});
  CHECK(s.got_one<Stop>(1).why.find("host2) was lost: it was cut off") != std::string::npos);
  s.reap(1);

  CHECK(s.got_one<RoundStart>(1).group_world_size == 2);
  CHECK(s.got_one<RoundStart>(3).attempt == 1);
}

TEST_CASE("a new agent of a host whose old one is silent takes its place", "[rendezvous][job]") {
  Scenario s = two_running(1);

  s.join_as(3, "host2", 1);
  CHECK(s.got<Refused>(3).empty());
  s.run_for(2'000ms, {1});  // Two heartbeats, less than the time-out.
  CHECK(s.got_one<Stop>(1).why.find("host2) was lost: it fell silent") != std::string::npos);
  s.reap(1);

  CHECK(s.closed == std::vector<PeerId>{2});
  CHECK(s.got_one<RoundStart>(3).group_rank == 1);
  CHECK(s.got_one<RoundStart>(1).attempt == 1);
}

TEST_CASE("a second agent of a host with the rank of a living one is refused",
          "[rendezvous][job]") {
  Scenario s = two_running(1);

  s.join_as(3, "host2", 1);
  CHECK(s.got_one<Waiting>(3).text ==
        "another agent of host2 has --node-rank 1; it has 2 s to answer");
  s.run_for(1'000ms, {1, 2});

  CHECK(s.got_one<Refused>(3).reason.find("--node-rank 1 is already taken") == 0);
  CHECK(s.closed == std::vector<PeerId>{3});
  CHECK(s.got<Stop>(1).empty());
}

TEST_CASE("a rank of another host is refused at once", "[rendezvous][job]") {
  Scenario s = two_running(1);

  s.join_as(3, "elsewhere", 1);

  CHECK(s.got_one<Refused>(3).reason.find("--node-rank 1 is already taken: ") == 0);
}

TEST_CASE("a new agent takes the place of one whose connection breaks while it waits",
          "[rendezvous][job]") {
  Scenario s = two_running(1);

  s.join_as(3, "host2", 1);
  s.lose(2);
  s.reap(1);

  CHECK(s.got_one<RoundStart>(3).group_rank == 1);
}

TEST_CASE("an agent that waits for its rank may leave", "[rendezvous][job]") {
  Scenario s = two_running(1);

  s.join_as(3, "host2", 1);
  s.say(3, Leaving{2});
  s.run_for(2'000ms, {1});

  CHECK(s.closed == std::vector<PeerId>{3});
  CHECK(s.got<Stop>(1).empty());

  s.join_as(4, "host2", 1);
  s.lose(4);  // As may its connection.
  s.lose(2);
  s.reap(1);
  CHECK(s.got<RoundStart>(1).size() == 0);
}

TEST_CASE("a coordinator that slept gives a rank's holder its time again", "[rendezvous][job]") {
  Scenario s = two_running(1);

  s.join_as(3, "host2", 1);
  s.pass(4'000ms);
  s.tick();
  CHECK(s.got<Stop>(1).empty());
  s.say(2, Heartbeat{});  // Had waited in the socket.

  CHECK(s.got<Refused>(3).size() == 1);
}

TEST_CASE("15.5: spares are bounded", "[rendezvous][job]") {
  Scenario s(elastic_job(1, 1, 0));
  for (PeerId peer = 1; peer <= 18; ++peer) s.join(peer);
  CHECK(s.got<Refused>(18).empty());
  s.join(19);
  CHECK(s.got_one<Refused>(19).reason == "there are enough spares");
}

TEST_CASE("16.1: a hello for another job puts nobody out of this one", "[rendezvous][job]") {
  Scenario s(elastic_job(2, 2, 1));
  s.join(1);
  s.join(2);
  s.got<RoundStart>(2);
  Hello stranger{.run_id = "another", .node_id = "stranger"};
  stranger.elastic = true;
  stranger.nnodes_min = stranger.nnodes_max = 2;
  stranger.replaces = "node2";
  s.say(3, stranger);
  CHECK(s.got<Refused>(3).size() == 1);
  CHECK(s.got<Stop>(1).empty());
  s.fail(2);
  CHECK(s.got<Stop>(1).size() == 1);
}
