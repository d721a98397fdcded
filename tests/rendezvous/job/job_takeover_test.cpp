// A job whose coordinator changes: what its members must know before, and what the next one makes
// of the round that it finds (mandate.h).
#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "rendezvous/job/job.h"
#include "tests/rendezvous/job/job_scenario.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

JobLimits with_successors(int nodes) {
  JobLimits limits = elastic_job(1, nodes, 3);
  limits.round.last_call = 0s;
  limits.may_be_taken_over = true;
  return limits;
}

// The round of node1 (which led), node2 and node3, as node2 knew it.
Inherited of_three(int restarts_used = 0) {
  Inherited inherited{.term = 1, .succession = {}, .lost_why = "it closed the connection"};
  inherited.succession = {.term = 0,
                          .round = {0, 4},
                          .nodes = 3,
                          .restarts_used = restarts_used,
                          .coordinator = "node1",
                          .council = {},
                          .before = {}};
  for (int node = 1; node <= 3; ++node) {
    inherited.succession.council.push_back({"node" + std::to_string(node), node - 1,
                                            "host" + std::to_string(node), "10.0.0.1", 40'000});
  }
  return inherited;
}

Scenario taken_over(const Inherited& inherited) {
  JobLimits limits = with_successors(3);
  limits.host_node_id = "node2";
  Scenario s(limits, inherited);
  s.take_over(inherited);
  return s;
}

}  // namespace

TEST_CASE("16.1: members know who may take over before they start workers", "[rendezvous][job]") {
  JobLimits limits = with_successors(3);
  limits.round.nodes_min = 3;
  Scenario s(limits);
  for (const PeerId peer : {1, 2, 3}) s.join(peer);

  const auto succession = s.got<Succession>(2);
  REQUIRE_FALSE(succession.empty());
  CHECK(succession.front().coordinator == "node1");
  CHECK(succession.front().nodes == 3);
  REQUIRE(succession.front().council.size() == 3);
  CHECK(succession.front().council[2] == Seat{"node3", 2, "host3", "10.0.0.3", 40'003});
  CHECK(s.got_one<RoundStart>(2).founder);

  JobLimits wider = with_successors(4);
  wider.round.nodes_min = 3;
  Scenario grown(wider);
  for (const PeerId peer : {1, 2, 3}) grown.join(peer);
  grown.join(4);
  for (const PeerId peer : {1, 2, 3}) grown.reap(peer);
  const Council council = grown.got<Succession>(2).back().council;
  REQUIRE(council.size() == 4);
  CHECK(council[0].founder);
  CHECK_FALSE(council[3].founder);
}

TEST_CASE("16.1: a coordinator that loses sight of most nodes at once ends", "[rendezvous][job]") {
  JobLimits limits = with_successors(3);
  limits.round.nodes_min = 3;
  Scenario s(limits);
  for (const PeerId peer : {1, 2, 3}) s.join(peer);

  SECTION("without a goodbye") {
    s.lose(3);
    CHECK_FALSE(s.over);
    s.lose(2);
    CHECK(s.over == exit_status::coordinator_lost);
    const Finish finish = s.got_one<Finish>(1);
    CHECK_FALSE(finish.cause);  // No single loss is to blame.
    CHECK(finish.may_rejoin);
  }
  SECTION("not where they said goodbye") {
    s.say(3, Leaving{SIGTERM});
    s.lose(3);
    s.lose(2);
    CHECK_FALSE(s.over);
  }
}

TEST_CASE("16.1: who takes over goes on with the round, and the lost node costs a restart",
          "[rendezvous][job]") {
  Scenario s = taken_over(of_three(1));
  s.come_back(2, 1, 4);
  s.come_back(3, 2, 4);
  CHECK(std::count(s.members.begin(), s.members.end(), PeerId{3}) == 1);  // The store is theirs.
  CHECK(s.got_one<Welcome>(3).heartbeat_interval_ms == 1'000);
  const Stop stop = s.got_one<Stop>(3);
  CHECK(stop.attempt == 4);
  CHECK(stop.why.find("node 0 (host1) was lost") != std::string::npos);
  CHECK(stop.why.find("1 of 3 restarts left") != std::string::npos);

  s.reap(2);
  s.reap(3);
  const auto round = s.got_one<RoundStart>(3);
  CHECK(round.attempt == 5);
  CHECK(round.group_world_size == 2);
  CHECK(s.got<Succession>(3).back().term == 1);
  CHECK(s.got<Succession>(3).empty());
}

TEST_CASE("16.1: a member that does not come back is lost as well", "[rendezvous][job]") {
  Scenario s = taken_over(of_three());
  s.come_back(2, 1, 4);
  s.reap(2);
  CHECK(s.got<RoundStart>(2).empty());

  // Two of three are gone: they may have chosen node3.
  s.run_for(6'000ms, {2});
  CHECK(s.over == exit_status::coordinator_lost);
}

TEST_CASE("16.1: whoever may take over knows who said goodbye, or comes as another node",
          "[rendezvous][job]") {
  JobLimits limits = with_successors(4);
  limits.round.nodes_min = 4;
  Scenario s(limits);
  for (const PeerId peer : {1, 2, 3, 4}) s.join(peer);
  s.got<Succession>(2);
  SECTION("it left") {
    s.say(4, Leaving{SIGTERM});
    for (const PeerId peer : {1, 2, 3, 4}) s.reap(peer);
    CHECK(s.got<Succession>(2).empty());  // It is here still.
    s.lose(4);
  }
  SECTION("it was cut off") { s.rejoin(5, 4); }
  const auto told = s.got<Succession>(2);
  REQUIRE(told.size() == 1);
  CHECK(told[0].resigned == std::vector<std::string>{"node4"});
}

TEST_CASE("16.1: one that comes from a later coordinator may have voted for it",
          "[rendezvous][job]") {
  const int term = GENERATE(0, 1);
  JobLimits limits = with_successors(3);
  limits.round.nodes_min = 3;
  Scenario s(limits);
  for (const PeerId peer : {1, 2, 3}) s.join(peer);

  s.rejoin(4, 3, term);
  CHECK(s.got<Moved>(4).size() == static_cast<std::size_t>(term));
  CHECK(std::count(s.closed.begin(), s.closed.end(), PeerId{4}) == term);
  s.lose(2);

  CHECK((s.over == exit_status::coordinator_lost) == (term == 1));
}

TEST_CASE("16.1: a node that said goodbye is neither waited for nor counted by who takes over",
          "[rendezvous][job]") {
  Inherited inherited = of_three();
  inherited.succession.nodes = 5;
  for (const int node : {4, 5}) {
    inherited.succession.council.push_back({"node" + std::to_string(node), node - 1,
                                            "host" + std::to_string(node), "10.0.0.1", 40'000});
  }
  inherited.succession.resigned = {"node5"};
  JobLimits limits = with_successors(5);
  limits.host_node_id = "node2";
  Scenario s(limits, inherited);
  SECTION("its coordinator was a member") {
    s.take_over(inherited);
    for (const PeerId peer : {2, 3, 4}) s.come_back(peer, static_cast<int>(peer) - 1, 4);
    s.lose(3);
    CHECK_FALSE(s.over);  // One more could have chosen another one.
    s.reap(2);
    s.reap(4);
    CHECK(s.got_one<RoundStart>(4).group_world_size == 2);
  }
  SECTION("its coordinator had no workers: a round that lacks a member has to end") {
    inherited.succession.coordinator = "another";
    s.take_over(inherited);
    for (const PeerId peer : {1, 2, 3, 4}) s.come_back(peer, static_cast<int>(peer) - 1, 4);
    CHECK(s.got_one<Stop>(4).attempt == 4);
    for (const PeerId peer : {1, 2, 3, 4}) s.reap(peer);
    CHECK(s.got_one<RoundStart>(4).group_world_size == 4);
  }
}

TEST_CASE("16.1: SIGTERM on the coordinator's node hands the job over, if enough are left",
          "[rendezvous][job]") {
  JobLimits limits = with_successors(3);
  limits.host_node_id = "node1";
  limits.round.nodes_min = GENERATE(2, 3);
  limits.round.last_call = 30s;
  const bool enough = limits.round.nodes_min == 2;
  Scenario s(limits);
  for (const PeerId peer : {1, 2, 3}) s.join(peer);
  const bool interrupted = GENERATE(false, true);  // Ctrl-C is somebody who wants the job over.
  s.got<HandOver>(2);

  s.say(1, Leaving{interrupted ? SIGINT : SIGTERM});
  const bool hands_over = enough && !interrupted;
  CHECK(s.got<HandOver>(2).size() == (hands_over ? 1 : 0));
  CHECK(s.got<Stop>(2).size() == (hands_over ? 0 : 1));
}

TEST_CASE(
    "16.1: SIGTERM on the coordinator's node hands the job over when another stop is under way",
    "[rendezvous][job]") {
  JobLimits limits = with_successors(4);
  limits.round.nodes_min = GENERATE(2, 3);
  limits.round.last_call = 30s;
  const bool enough = limits.round.nodes_min == 2;
  Scenario s(limits);
  for (const PeerId peer : {1, 2, 3, 4}) s.join(peer);

  s.say(3, Leaving{SIGTERM});
  s.say(1, Leaving{SIGTERM});
  CHECK(s.got<HandOver>(2).empty());  // Its workers stop first.
  for (const PeerId peer : {1, 2, 3, 4}) s.reap(peer);

  CHECK(s.got<HandOver>(1).size() == (enough ? 1 : 0));
  CHECK(s.got<HandOver>(2).size() == (enough ? 1 : 0));
  CHECK(s.got<Finish>(2).size() == (enough ? 0 : 1));
  CHECK(s.got_one<Finish>(3).exit_status == exit_status::preempted);
  CHECK(s.over.has_value() != enough);
}

// As where any other node leaves: its workers told the others, and one of those was heard first.
TEST_CASE("16.1: what workers wish for because the coordinator's node leaves does not end the job",
          "[rendezvous][job]") {
  JobLimits limits = with_successors(3);
  limits.round.last_call = 30s;
  Scenario s(limits);
  for (const PeerId peer : {1, 2, 3}) s.join(peer);
  s.ask_again(2);
  s.say(1, Leaving{SIGTERM});
  for (const PeerId peer : {1, 2, 3}) s.reap(peer);

  CHECK(s.got<HandOver>(2).size() == 1);
  CHECK(s.got<Finish>(2).empty());
  CHECK_FALSE(s.over);
}

TEST_CASE("16.1: SIGTERM on the coordinator's node hands the job over during a backoff",
          "[rendezvous][job]") {
  JobLimits limits = with_successors(3);
  limits.round.last_call = 30s;
  limits.restarts.backoff_first = 10s;
  Scenario s(limits);
  for (const PeerId peer : {1, 2, 3}) s.join(peer);
  s.progress(70);
  for (int failure = 0; failure < 3; ++failure) {
    s.fail(3);
    s.got<RoundStart>(2);
    for (const PeerId peer : {1, 2, 3}) s.reap(peer);
  }
  REQUIRE(s.got<RoundStart>(2).empty());

  s.say(1, Leaving{SIGTERM});

  CHECK(s.got<HandOver>(2).size() == 1);
  CHECK(s.closed == std::vector<PeerId>{1, 2, 3});
  const Succession last = s.got<Succession>(2).back();
  CHECK(last.restarts_used == 3);
  CHECK(last.failures_in_a_row == 2);  // The first one that comes from outside is not counted.
  CHECK(last.progress == 70);
  CHECK_FALSE(s.over);
  CHECK_FALSE(s.due_in());  // And it does nothing more.
}

TEST_CASE("16.1: who leads a job that is to end hands nothing over", "[rendezvous][job]") {
  SECTION("because its workers have failed") {
    JobLimits limits = with_successors(3);
    limits.restarts.restarts_max = 0;
    limits.round.nodes_min = 2;
    limits.round.last_call = 30s;
    Scenario s(limits);
    for (const PeerId peer : {1, 2, 3}) s.join(peer);
    s.fail(3);
    s.say(1, Leaving{SIGTERM});
    for (const PeerId peer : {1, 2, 3}) s.reap(peer);
    CHECK(s.over == 137);
    CHECK(s.got<HandOver>(2).empty());
  }
  SECTION("because too few others stay after all") {
    JobLimits limits = with_successors(3);
    limits.round.nodes_min = 2;
    limits.round.last_call = 30s;
    Scenario s(limits);
    for (const PeerId peer : {1, 2, 3}) s.join(peer);
    s.fail(2);
    s.say(1, Leaving{SIGTERM});
    s.say(3, Leaving{SIGTERM});
    for (const PeerId peer : {1, 2, 3}) s.reap(peer);
    CHECK(s.over == exit_status::preempted);
    CHECK(s.got_one<Finish>(2).cause->host == "host1");
  }
  SECTION("because of a node that does not lead, of a job that needs all") {
    JobLimits limits = static_job(3, 3);
    limits.may_be_taken_over = true;
    Scenario s(limits);
    for (const PeerId peer : {1, 2, 3}) s.join(peer);
    s.say(3, Leaving{SIGTERM});
    CHECK(s.got<HandOver>(2).empty());
    CHECK(s.got_one<Stop>(2).final_verdict);
  }
}

TEST_CASE("16.1: who comes back when the job is over hears how it ended", "[rendezvous][job]") {
  Scenario s = taken_over(of_three(3));
  for (const PeerId peer : {2, 3}) s.come_back(peer, static_cast<int>(peer) - 1, 4);
  for (const PeerId peer : {2, 3}) s.reap(peer);
  REQUIRE(s.over == exit_status::node_lost);
  Hello again{.run_id = "job", .node_id = "node3"};
  again.resumes = RoundSeat{0, 4, 2, true};
  s.say(8, again);
  const Finish finish = s.got_one<Finish>(8);
  CHECK(finish.exit_status == exit_status::node_lost);
  CHECK_FALSE(finish.may_rejoin);
  CHECK(s.closed == std::vector<PeerId>{8});
}

TEST_CASE("16.1: what is said of this job's nodes in another job's name changes nothing",
          "[rendezvous][job]") {
  Inherited inherited = of_three();
  inherited.succession.council.pop_back();  // The third one has no seat, and so no name here.
  Scenario s = taken_over(inherited);
  s.come_back(2, 1, 4);
  Hello other{.run_id = "another", .node_id = "node3"};
  other.replaces = "node2";
  s.say(7, other);
  CHECK(s.got<Refused>(7).size() == 1);
  other.resumes = RoundSeat{0, 4, 2, true};
  s.say(8, other);
  CHECK(s.got<Refused>(8).size() == 1);
  s.say(9, Hello{.run_id = "job", .node_id = "node9", .elastic = true, .nnodes_max = 3});
  CHECK(s.got<Succession>(2).back().resigned.empty());

  s.come_back(3, 2, 4);
  CHECK(s.got<Welcome>(3).size() == 1);  // Nobody has taken its place.
}

TEST_CASE("16.1: only who can be asked for its vote has a seat, and so many as can be asked",
          "[rendezvous][job]") {
  JobLimits limits = with_successors(20);
  limits.round.nodes_min = 20;
  Scenario s(limits);
  for (PeerId peer = 1; peer <= 20; ++peer) s.join(peer, {}, "job", /*listens=*/peer != 2);
  const Council council = s.got<Succession>(1).back().council;
  REQUIRE(council.size() == council_max);
  CHECK(council[0].node_id == "node1");
  CHECK(council[1].node_id == "node3");
}

TEST_CASE("16.1: nobody could go on from a round that has never begun", "[rendezvous][job]") {
  JobLimits limits = with_successors(3);
  limits.round.last_call = 30s;
  Scenario s(limits);
  s.join(1);
  s.join(2);

  s.say(1, Leaving{SIGTERM});

  CHECK(s.got<HandOver>(2).empty());
  CHECK(s.over == exit_status::preempted);
}

TEST_CASE("16.1: who is handed the job uses no restart, and waits for the leaving node's workers",
          "[rendezvous][job]") {
  Inherited inherited = of_three(1);
  inherited.handed_over = true;
  Scenario s = taken_over(inherited);
  for (const PeerId peer : {1, 2, 3}) s.come_back(peer, static_cast<int>(peer) - 1, 4);
  CHECK_FALSE(s.got_one<Stop>(3).cause);
  s.say(1, Leaving{SIGTERM});
  s.reap(2);
  s.reap(3);
  CHECK(s.got<RoundStart>(3).empty());
  s.reap(1);
  CHECK(s.got_one<Finish>(1).exit_status == exit_status::preempted);
  CHECK(s.got_one<RoundStart>(3).group_world_size == 2);
  CHECK(s.got<Succession>(3).back().restarts_used == 1);
}

TEST_CASE("16.1: who is handed the job between two attempts begins the next one without that node",
          "[rendezvous][job]") {
  Inherited inherited = of_three();
  inherited.handed_over = true;
  Scenario s = taken_over(inherited);
  for (const PeerId peer : {2, 3, 1}) {
    s.come_back(peer, static_cast<int>(peer) - 1, 4);
    s.reap(peer);
  }
  CHECK(s.got_one<RoundStart>(3).group_world_size == 2);

  s.say(1, Leaving{SIGTERM});  // In the order in which it has said both.
  CHECK(s.got_one<Finish>(1).exit_status == exit_status::preempted);
  CHECK(s.got<RoundStart>(1).empty());
  CHECK(s.got<Waiting>(1).empty());  // It is no spare.
}

TEST_CASE("16.1: who leads on gives the job the restarts that its first coordinator was given",
          "[rendezvous][job]") {
  Inherited inherited = of_three(4);
  inherited.succession.max_restarts = 5;  // Its own are 3.
  Scenario s = taken_over(inherited);
  for (const PeerId peer : {2, 3}) s.come_back(peer, static_cast<int>(peer) - 1, 4);
  CHECK_FALSE(s.got_one<Stop>(3).final_verdict);
  for (const PeerId peer : {2, 3}) s.reap(peer);

  CHECK(s.got_one<RoundStart>(3).max_restarts == 5);
  const Succession next = s.got<Succession>(3).back();
  CHECK(next.max_restarts == 5);
  CHECK(next.restarts_used == 5);
}

TEST_CASE("16.1: how long the attempt has run counts for restarts also under who takes over",
          "[rendezvous][job]") {
  Inherited inherited = of_three(3);  // All of them.
  inherited.ran = 2h;
  JobLimits limits = with_successors(3);
  limits.host_node_id = "node2";
  limits.restarts.forgive_after = GENERATE(1h, 3h);
  const bool forgiven = limits.restarts.forgive_after == 1h;
  Scenario s(limits, inherited);
  s.take_over(inherited);
  for (const PeerId peer : {2, 3}) s.come_back(peer, static_cast<int>(peer) - 1, 4);

  CHECK(s.got_one<Stop>(3).final_verdict != forgiven);
}

TEST_CASE("16.1: one of another term's round of the same number is sent away",
          "[rendezvous][job]") {
  Inherited inherited = of_three();
  inherited.term = 3;
  inherited.succession.term = 2;  // Whoever led then had closed no round of its own.
  inherited.succession.round.term = 1;
  Scenario s = taken_over(inherited);
  s.come_back(2, 1, 4, true, 1);
  CHECK(s.got_one<Succession>(2).round == RoundName{1, 4});
  s.come_back(3, 2, 4, true, 0);
  CHECK(s.got_one<Finish>(3).may_rejoin);
  CHECK(s.got<Welcome>(3).empty());
  s.rejoin(4, 3);
  s.reap(2);
  CHECK(s.got<Succession>(4).back().round.term == 3);
}

TEST_CASE("16.1: failures that take their coordinator with them wait longer each time, too",
          "[rendezvous][job]") {
  for (const bool further : {false, true}) {
    Inherited inherited = of_three();
    inherited.succession.failures_in_a_row = 3;
    inherited.succession.progress = 70;
    JobLimits limits = with_successors(3);
    limits.host_node_id = "node2";
    limits.restarts.backoff_first = 500ms;
    Scenario s(limits, inherited);
    s.progress(further ? 71 : 70);
    s.take_over(inherited);
    s.come_back(2, 1, 4);
    const std::string why = s.got_one<Stop>(2).why;
    INFO(why);
    const bool waits = why.find("restarting in ") != std::string::npos;
    CHECK(waits != further);
  }
}

TEST_CASE("16.1: a coordinator that came later takes no restart with it", "[rendezvous][job]") {
  for (const bool founder : {true, false}) {
    Inherited inherited = of_three(/*restarts_used=*/3);  // Of three.
    inherited.succession.council[0].founder = founder;
    Scenario s = taken_over(inherited);
    s.come_back(2, 1, 4);
    CHECK(s.got_one<Stop>(2).final_verdict == founder);
  }
}

TEST_CASE("16.1: one of another round joins anew, and its attempt's number is used up",
          "[rendezvous][job]") {
  Scenario s = taken_over(of_three());
  s.come_back(2, 1, 4);
  s.come_back(3, 0, 5);
  CHECK(s.got_one<Finish>(3).may_rejoin);
  CHECK(s.got<Welcome>(3).empty());

  s.rejoin(4, 3);
  s.reap(2);
  CHECK(s.got_one<RoundStart>(2).attempt == 6);
  CHECK(s.got_one<RoundStart>(4).founder);
}

TEST_CASE("16.1: an attempt that was being stopped under a coordinator without workers is over",
          "[rendezvous][job]") {
  Inherited inherited = of_three();
  inherited.succession.coordinator = "another";
  Scenario s = taken_over(inherited);
  for (const PeerId peer : {1, 2, 3}) s.come_back(peer, static_cast<int>(peer) - 1, 4);
  CHECK(s.got<Stop>(3).empty());

  s.say(1, Reaped{.attempt = 4, .cause = {}});
  CHECK(s.got_one<Stop>(3).why.find("was told to stop") != std::string::npos);
  s.reap(2);
  s.reap(3);
  CHECK(s.got_one<RoundStart>(1).group_world_size == 3);
}

TEST_CASE("16.1: who leads and had not heard that the last round begins is in the next one",
          "[rendezvous][job]") {
  Inherited inherited = of_three();
  const bool stops = GENERATE(true, false);
  if (!stops) inherited.succession.coordinator = "another";  // It had no workers: nobody is lost.
  Scenario s = taken_over(inherited);
  if (!stops) s.come_back(1, 0, 4);
  s.come_back(3, 2, 4);
  s.come_back(2, 1, 3);
  CHECK(s.got<Finish>(2).empty());
  CHECK(s.got<Welcome>(2).size() == 1);
  Hello again{.run_id = "job", .node_id = "node2"};  // Whoever says so is not the one that is here.
  again.resumes = RoundSeat{0, 3, 1, true};
  s.say(9, again);
  CHECK(s.got<Welcome>(9).empty());
  CHECK(s.got<Finish>(9).size() == 1);
  CHECK(s.got<Stop>(3).size() == 1);

  if (!stops) s.reap(1);
  s.reap(3);
  const auto round = s.got_one<RoundStart>(2);
  CHECK(round.attempt == 5);
  CHECK(round.founder);
  CHECK(round.group_world_size == (stops ? 2 : 3));
}

TEST_CASE("16.1: what is said of an older term's attempt of the same number is not heard",
          "[rendezvous][job]") {
  Scenario s = taken_over(of_three());
  s.come_back(2, 1, 4);
  s.come_back(3, 2, 4);
  s.reap(2);
  s.reap(3);
  const auto round = s.got<RoundStart>(3).back();
  REQUIRE(round_name(round) == RoundName{1, 5});

  // Both say all that the round of another coordinator, with the same number, could make them say.
  for (const PeerId peer : {2, 3}) {
    s.say(peer, WorkersSucceeded{5, 0});
    s.say(peer, WorkerFailed{5, {.rank = 1, .pid = 77, .signal = 9}, 0});
    s.say(peer, Reaped{5, {}, 0});
  }
  CHECK_FALSE(s.over);
  CHECK(s.got<Stop>(2).size() <= 1);  // The one of the take-over.

  s.fail(3);
  const Stop stop = s.got_one<Stop>(2);
  CHECK(round_name(stop) == RoundName{1, 5});
  s.say(2, Reaped{5, {}, 0});
  s.reap(3);
  CHECK(s.got<RoundStart>(3).empty());
  s.reap(2);
  CHECK(s.got_one<RoundStart>(3).attempt == 6);
}
