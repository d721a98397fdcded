// The job-wide verdict as scenarios: messages in, messages out, time as a number.
#include "rendezvous/job/job.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <map>
#include <set>

#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

JobLimits static_job(int nodes, int max_restarts) {
  JobLimits limits;
  limits.run_id = "job";
  limits.round = {.nodes_min = nodes, .nodes_max = nodes, .join_timeout = 600s};
  limits.restarts.restarts_max = max_restarts;
  limits.restarts.backoff_first = 0ms;
  limits.host_node_id = "node1";
  limits.master_addr = "10.0.0.1";
  limits.master_port = 29'500;
  return limits;
}

JobLimits elastic_job(int min, int max, int max_restarts) {
  JobLimits limits = static_job(max, max_restarts);
  limits.round.elastic = true;
  limits.round.nodes_min = min;
  limits.round.last_call = 30s;
  return limits;
}

// A job with agents that are only messages. Peers are numbered from 1; peer n is node rank n-1.
class Scenario {
 public:
  explicit Scenario(JobLimits limits) : limits_(limits), job_(std::move(limits), now_) {}
  Scenario(JobLimits limits, const Inherited& inherited)
      : limits_(limits), job_(std::move(limits), inherited, now_) {}

  void join(PeerId peer, std::optional<int> rank = {}, const std::string& run_id = "job") {
    Hello hello{.run_id = run_id, .node_id = "node" + std::to_string(peer)};
    hello.host = "host" + std::to_string(peer);
    hello.address = "10.0.0." + std::to_string(peer);
    hello.node_rank = rank ? rank : static_cast<int>(peer) - 1;
    if (limits_.round.elastic) hello.node_rank.reset();
    hello.elastic = limits_.round.elastic;
    hello.nproc = 2;
    hello.nnodes_min = limits_.round.nodes_min;
    hello.nnodes_max = limits_.round.nodes_max;
    if (limits_.may_be_taken_over) hello.standby_port = 40'000 + static_cast<int>(peer);
    say(peer, hello);
  }
  // A member of the round that was, with what it had said in it.
  void come_back(PeerId peer, int group_rank, int attempt, bool founder = true, int term = 0) {
    Hello hello{.run_id = "job", .node_id = "node" + std::to_string(peer)};
    hello.host = "host" + std::to_string(peer);
    hello.elastic = true;
    hello.nnodes_min = limits_.round.nodes_min;
    hello.nnodes_max = limits_.round.nodes_max;
    hello.resumes = RoundSeat{term, attempt, group_rank, founder};
    say(peer, hello);
  }
  void take_over(const Inherited& inherited) { take(job_.take_over(inherited)); }
  void say(PeerId peer, const ControlMessage& message) {
    take(job_.on_message(peer, message, now_));
  }
  // A node of a static job that calls itself as another one does.
  void join_as(PeerId peer, const std::string& host, int rank) {
    Hello hello{.run_id = "job", .node_id = "node" + std::to_string(peer), .host = host};
    hello.node_rank = rank;
    hello.nnodes_min = limits_.round.nodes_min;
    hello.nnodes_max = limits_.round.nodes_max;
    say(peer, hello);
  }
  void rejoin(PeerId peer, PeerId before) {
    Hello hello{.run_id = "job", .node_id = "node" + std::to_string(peer)};
    hello.host = "host" + std::to_string(before);
    hello.elastic = true;
    hello.nnodes_min = limits_.round.nodes_min;
    hello.nnodes_max = limits_.round.nodes_max;
    hello.replaces = "node" + std::to_string(before);
    say(peer, hello);
  }
  void progress(std::int64_t position) { job_.on_progress(position); }
  void fail(PeerId peer, FirstCause cause = {.rank = 1, .pid = 77, .signal = 9}) {
    say(peer, WorkerFailed{job_.attempt(), cause});
  }
  void succeed(PeerId peer) { say(peer, WorkersSucceeded{job_.attempt()}); }
  void reap(PeerId peer) { say(peer, Reaped{job_.attempt()}); }
  void lose(PeerId peer) { take(job_.on_lost(peer, "it closed the connection", now_)); }
  void pass(std::chrono::milliseconds time) { now_ += time; }
  void tick() { take(job_.on_tick(now_)); }
  // Lets time pass as a punctual timer would, while the peers given answer every heartbeat.
  void run_for(std::chrono::milliseconds time, const std::vector<PeerId>& alive) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      now_ += 1'000ms;
      for (const PeerId peer : alive) say(peer, Heartbeat{});
      tick();
    }
  }

  // The messages of one kind that a peer got since the last call of this for it.
  template <class T>
  std::vector<T> got(PeerId peer) {
    std::vector<T> result;
    std::erase_if(inbox_[peer], [&](const ControlMessage& message) {
      if (!std::holds_alternative<T>(message)) return false;
      result.push_back(std::get<T>(message));
      return true;
    });
    return result;
  }
  template <class T>
  T got_one(PeerId peer) {
    const auto all = got<T>(peer);
    REQUIRE(all.size() == 1);
    return all.front();
  }

  std::set<PeerId> mute;        // Say nothing about their workers.
  std::vector<PeerId> members;  // Who may use the store.
  std::vector<PeerId> closed;
  std::vector<int> attempts;  // StartAttempt actions.
  std::optional<int> over;    // JobOver's exit status.

 private:
  void take(const JobActions& actions) {
    std::vector<PeerId> started;
    for (const JobAction& action : actions) {
      if (const auto* send = std::get_if<SendTo>(&action)) {
        if (std::holds_alternative<RoundStart>(send->message)) {
          CHECK_FALSE(attempts.empty());  // The store is emptied before anybody starts.
          CHECK(attempts.back() == std::get<RoundStart>(send->message).attempt);
          CHECK(std::count(members.begin(), members.end(), send->peer) == 1);
          if (!mute.contains(send->peer)) started.push_back(send->peer);
        }
        inbox_[send->peer].push_back(send->message);
      }
      if (const auto* close = std::get_if<CloseAfterSending>(&action))
        closed.push_back(close->peer);
      if (const auto* now_in = std::get_if<Members>(&action)) members = now_in->peers;
      if (const auto* start = std::get_if<StartAttempt>(&action))
        attempts.push_back(start->attempt);
      if (const auto* end = std::get_if<JobOver>(&action)) over = end->exit_status;
    }
    for (const PeerId peer : started) say(peer, Started{job_.attempt()});
  }

  JobLimits limits_;
  TimePoint now_{};
  Job job_;
  std::map<PeerId, std::vector<ControlMessage>> inbox_;
};

JobLimits with_backoff() {
  JobLimits limits = static_job(2, 9);
  limits.restarts.backoff_first = 500ms;
  return limits;
}

Scenario two_running(int max_restarts) {
  Scenario s(static_job(2, max_restarts));
  s.join(1);
  s.join(2);
  REQUIRE(s.got<RoundStart>(1).size() == 1);
  REQUIRE(s.got<RoundStart>(2).size() == 1);
  return s;
}

}  // namespace

TEST_CASE("nodes start together once all have joined", "[rendezvous][job]") {
  Scenario s(static_job(2, 0));

  s.join(2);
  CHECK(s.got_one<Waiting>(2).text.find("node 0") != std::string::npos);
  CHECK(s.got<RoundStart>(2).empty());
  s.join(1);

  const RoundStart first = s.got_one<RoundStart>(1);
  const RoundStart second = s.got_one<RoundStart>(2);
  CHECK(first.rank_base == 0);
  CHECK(second.rank_base == 2);
  CHECK(second.world_size == 4);
  CHECK(second.master_addr == "10.0.0.1");
  CHECK(second.addresses == std::vector<std::string>{"10.0.0.1", "10.0.0.2"});
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
    s.fail(2);
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

TEST_CASE("Ctrl-C during the backoff ends the job", "[rendezvous][job]") {
  Scenario s(with_backoff());
  s.join(1);
  s.join(2);
  for (int i = 0; i < 2; ++i) {
    s.fail(2);
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

TEST_CASE("the wait for a lost node ends with the join timeout", "[rendezvous][job]") {
  Scenario s = two_running(1);
  s.lose(2);
  s.reap(1);

  s.run_for(601'000ms, {1});

  CHECK(s.over == exit_status::rendezvous_timeout);
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
  CHECK(s.got_one<Waiting>(3).text.find("as a spare") != std::string::npos);  // 14.8: hears why.

  s.lose(2);
  s.reap(1);

  CHECK(s.got_one<RoundStart>(3).group_rank == 1);
}

TEST_CASE("nobody joins a job that is ending", "[rendezvous][job]") {
  Scenario s = two_running(0);
  s.lose(2);

  s.join(3, 1);

  CHECK(s.got_one<Refused>(3).reason == "this job is ending");
}

TEST_CASE("an attempt that got further than all before it ends the row of failures",
          "[rendezvous][job]") {
  Scenario s(with_backoff());
  s.join(1);
  s.join(2);
  const auto attempt_that_came_to = [&](std::int64_t position) {
    s.got<RoundStart>(1);
    s.progress(position);
    s.fail(2);
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

  CHECK(s.over == exit_status::rendezvous_timeout);
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

TEST_CASE("15.5: many that joined together and go one by one cost one restart a pause",
          "[rendezvous][job]") {
  Scenario s = growing(1);
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
  s.join(3);
  founders_reap(s);
  s.lose(3);
  founders_reap(s);
  s.pass(500ms);
  s.tick();
  s.got<RoundStart>(1);

  s.join(4);
  CHECK(s.got_one<Waiting>(4).text.find("stands by for 4.5 s") != std::string::npos);
  s.run_for(5'000ms, {1, 2, 4});
  founders_reap(s);

  CHECK(s.got<RoundStart>(4).size() == 1);
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

TEST_CASE("15.5: spares are bounded", "[rendezvous][job]") {
  Scenario s(elastic_job(1, 1, 0));
  for (PeerId peer = 1; peer <= 18; ++peer) s.join(peer);
  CHECK(s.got<Refused>(18).empty());
  s.join(19);
  CHECK(s.got_one<Refused>(19).reason == "there are enough spares");
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
                          .attempt = 4,
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

TEST_CASE("16.1: one of another term's round of the same number is sent away",
          "[rendezvous][job]") {
  Inherited inherited = of_three();
  inherited.term = 3;
  inherited.succession.term = 2;  // Whoever led then had closed no round of its own.
  inherited.succession.round_term = 1;
  Scenario s = taken_over(inherited);
  s.come_back(2, 1, 4, true, 1);
  CHECK(s.got_one<Succession>(2).round_term == 1);
  s.come_back(3, 2, 4, true, 0);
  CHECK(s.got_one<Finish>(3).may_rejoin);
  CHECK(s.got<Welcome>(3).empty());
  s.rejoin(4, 3);
  s.reap(2);
  CHECK(s.got<Succession>(4).back().round_term == 3);
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
