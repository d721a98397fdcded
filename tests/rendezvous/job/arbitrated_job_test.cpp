// The coordinator of two nodes that loses one, and what the arbiter says to it.
#include <string>
#include <vector>

#include "rendezvous/job/job.h"
#include "tests/testing/catch.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

// Node 1 hosts the coordinator. Both started attempt 0, and node 2 is lost.
class HalfAJob {
 public:
  HalfAJob() : job_(limits(), now_) {
    for (const PeerId peer : {1, 2}) {
      Hello hello{.run_id = "job", .node_id = "node" + std::to_string(peer)};
      hello.elastic = true;
      hello.nnodes_max = 2;
      hello.standby_port = 40'000 + static_cast<int>(peer);
      take(job_.on_message(peer, hello, now_));
    }
    for (const PeerId peer : {1, 2}) take(job_.on_message(peer, Started{0}, now_));
    REQUIRE(rounds == std::vector<int>{0, 0});
    take(job_.on_lost(2, "it closed the connection", now_));
  }

  void reap() { take(job_.on_message(1, Reaped{0, {}}, now_)); }
  void hear(Word::Kind kind, int term = 0) {
    take(job_.on_word({.kind = kind,
                       .rounds = wishes.back().rounds,
                       .term = term,
                       .holder = {.node_id = "node2", .host = "host2", .address = "10.0.0.2"},
                       .why = "the server is away"},
                      now_));
  }
  void pass(Milliseconds time) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      now_ += 500ms;
      take(job_.on_message(1, Heartbeat{}, now_));
      take(job_.on_tick(now_));
    }
  }

  std::vector<WordWish> wishes;
  std::vector<int> rounds;  // The attempts of all RoundStarts.
  std::vector<Succession> successions;
  std::optional<Finish> finish;

 private:
  static JobLimits limits() {
    JobLimits limits;
    limits.run_id = "job";
    limits.round = {.elastic = true, .nodes_min = 1, .nodes_max = 2};
    limits.round.last_call = 30s;
    limits.restarts.restarts_max = 3;
    limits.restarts.backoff_first = 0ms;
    limits.host_node_id = "node1";
    limits.may_be_taken_over = true;
    limits.arbitration = Arbitration::Halves;
    limits.job = "name";
    limits.word_limit = 20s;
    return limits;
  }
  void take(const JobActions& actions) {
    for (const JobAction& action : actions) {
      if (const auto* wanted = std::get_if<AskForWord>(&action)) wishes.push_back(wanted->wish);
      const auto* sent = std::get_if<SendTo>(&action);
      if (sent == nullptr) continue;
      if (const auto* round = std::get_if<RoundStart>(&sent->message)) {
        rounds.push_back(round->attempt);
      }
      if (const auto* told = std::get_if<Succession>(&sent->message)) successions.push_back(*told);
      if (const auto* end = std::get_if<Finish>(&sent->message)) finish = *end;
    }
  }

  TimePoint now_ = TimePoint() + 1h;
  Job job_;
};

}  // namespace

TEST_CASE("16.1: no new round begins before the word is given, and kept",
          "[rendezvous][job][arbiter]") {
  HalfAJob job;
  REQUIRE(job.wishes.size() == 1);
  CHECK(job.wishes[0].rounds == std::vector{RoundName{0, 0}});
  CHECK(job.wishes[0].leads);
  CHECK_FALSE(job.wishes[0].keep);
  job.reap();
  CHECK(job.rounds.size() == 2);

  job.hear(Word::Kind::Given);
  REQUIRE(job.wishes.size() == 2);
  CHECK(job.wishes[1].keep);
  CHECK(job.wishes[1].rounds == std::vector{RoundName{0, 0}});
  CHECK(job.rounds.size() == 2);

  job.hear(Word::Kind::Kept, /*term=*/1'003);
  CHECK(job.rounds == std::vector<int>{0, 0, 1});
  CHECK(job.successions.back().job == "name");
  CHECK(job.successions.back().term == 1'003);
  CHECK(job.successions.back().round == RoundName{1'003, 1});
  job.hear(Word::Kind::Refused);  // To nobody's question.
  CHECK_FALSE(job.finish);
}

TEST_CASE("16.1: a coordinator whose job another one has claimed ends, and says whose it is",
          "[rendezvous][job][arbiter]") {
  HalfAJob job;
  job.hear(Word::Kind::Refused);
  REQUIRE(job.finish);
  CHECK(job.finish->exit_status == exit_status::coordinator_lost);
  CHECK(job.finish->why == "host2 at 10.0.0.2 has claimed the job, so this node stops");
}

TEST_CASE("16.1: an arbiter that stays away ends the half, and one that comes back does not",
          "[rendezvous][job][arbiter]") {
  HalfAJob job;
  job.reap();
  job.hear(Word::Kind::Unreached);
  job.pass(19s);
  CHECK_FALSE(job.finish);
  SECTION("away") {
    job.pass(2s);
    REQUIRE(job.finish);
    CHECK(job.finish->exit_status == exit_status::coordinator_lost);
    CHECK(job.finish->why == "the server is away");
    CHECK(job.rounds.size() == 2);
  }
  SECTION("back") {
    job.hear(Word::Kind::Given);
    job.hear(Word::Kind::Kept);
    job.pass(30s);
    CHECK_FALSE(job.finish);
    CHECK(job.rounds == std::vector<int>{0, 0, 1});
  }
}
