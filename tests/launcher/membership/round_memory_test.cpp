// What a node would tell a coordinator that takes its round over.
#include "launcher/membership/round_memory.h"

#include <chrono>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using namespace ddprun::rendezvous;
using namespace std::chrono_literals;

namespace {

const TimePoint first_moment = TimePoint() + 1h;

RoundMemory in_round(int term, int attempt) {
  RoundMemory memory;
  memory.heard(
      Succession{
          .term = term, .round = {term, attempt}, .coordinator = "a", .council = {}, .before = {}},
      first_moment);
  memory.heard(RoundStart{.attempt = attempt, .term = term, .group_rank = 2, .founder = true},
               first_moment);
  return memory;
}

}  // namespace

TEST_CASE("16.1: a node knows its place, and repeats what it said in this round alone",
          "[launcher][round_memory]") {
  RoundMemory memory = in_round(1, 4);
  memory.said(Started{4});
  memory.said(WorkersSucceeded{4});
  REQUIRE(memory.seat());
  CHECK(memory.seat()->term == 1);
  CHECK(memory.seat()->attempt == 4);
  CHECK(memory.seat()->group_rank == 2);
  CHECK(memory.seat()->founder);
  CHECK(memory.said().size() == 2);

  memory.heard(RoundStart{.attempt = 5, .term = 1}, first_moment);
  CHECK(memory.said().empty());
  CHECK(memory.seat()->attempt == 5);

  memory.said(Started{5});
  memory.heard(Finish{.exit_status = 74, .may_rejoin = true}, first_moment);
  memory.forget("me");  // As a new node it has said and heard nothing.
  CHECK(memory.said().empty());
  CHECK_FALSE(memory.finish_heard());
}

TEST_CASE("a job is over for a node by a last word that lets nobody come back",
          "[launcher][round_memory]") {
  RoundMemory memory = in_round(0, 0);
  memory.heard(Finish{.exit_status = exit_status::node_lost, .may_rejoin = true}, first_moment);
  CHECK_FALSE(memory.job_is_over());
  memory.heard(Finish{.exit_status = exit_status::coordinator_lost}, first_moment);
  CHECK_FALSE(memory.job_is_over());  // It may go on elsewhere.
  memory.heard(Finish{.exit_status = 0}, first_moment);
  CHECK(memory.job_is_over());
}

TEST_CASE("16.3: who takes a round over hears with how many workers each node is in it",
          "[launcher][round_memory]") {
  RoundMemory memory = in_round(0, 0);
  CHECK(memory.workers() == 0);  // As many as the hello said.
  memory.heard(RoundStart{.attempt = 1, .nproc = 1}, first_moment);
  CHECK(memory.workers() == 1);
  memory.forget("me");  // A new node begins with all of them.
  CHECK(memory.workers() == 0);
}

TEST_CASE("16.3: who comes back as a new node knows whether it is to the same job",
          "[launcher][round_memory]") {
  const auto council = [](const std::vector<std::string>& ids) {
    Council seats;
    for (const std::string& id : ids) {
      seats.push_back(
          {.node_id = id, .group_rank = static_cast<int>(seats.size()), .host = {}, .address = {}});
    }
    return seats;
  };
  const auto round = [](RoundMemory& memory, int attempt, Council now, Council before) {
    memory.heard(Succession{.round = {0, attempt},
                            .coordinator = {},
                            .council = std::move(now),
                            .before = std::move(before)},
                 first_moment);
    memory.heard(RoundStart{.attempt = attempt, .group_rank = 1}, first_moment);
    return memory.is_of_another_job();
  };
  RoundMemory memory;
  CHECK_FALSE(round(memory, 0, council({"a", "me", "c"}), {}));
  memory.forget("me");

  SECTION("one is there still") { CHECK_FALSE(round(memory, 2, council({"c", "me again"}), {})); }
  SECTION("one was there a round ago") {
    CHECK_FALSE(round(memory, 2, council({"d", "me again"}), council({"a", "d"})));
  }
  SECTION("nobody is, though the numbers fit") {
    CHECK(round(memory, 2, council({"x", "me again"}), council({"x", "y"})));
    CHECK_FALSE(round(memory, 3, council({"z", "me again"}), {}));  // In which it is at home now.
  }
  SECTION("nobody but itself") { CHECK(round(memory, 2, council({"x", "me"}), {})); }
  SECTION("it was cut off twice meanwhile") {
    memory.forget("me");
    CHECK_FALSE(round(memory, 2, council({"a", "me again"}), {}));
  }
}

TEST_CASE("16.3: of a job that nobody else could lead the coordinator tells which it is",
          "[launcher][round_memory]") {
  RoundMemory memory;
  memory.heard(RoundStart{.attempt = 0, .group_rank = 1, .coordinator = "a"}, first_moment);
  CHECK_FALSE(memory.is_of_another_job());
  memory.forget("me");
  const bool same = GENERATE(true, false);
  memory.heard(RoundStart{.attempt = 2, .group_rank = 1, .coordinator = same ? "a" : "b"},
               first_moment);
  CHECK(memory.is_of_another_job() != same);
}

TEST_CASE("16.1: only who is in a round that can go on looks for another coordinator",
          "[launcher][round_memory]") {
  CHECK_FALSE(RoundMemory().could_go_on());
  RoundMemory memory = in_round(0, 0);
  memory.said(Started{0});
  CHECK(memory.could_go_on());
  CHECK_FALSE(memory.ends());
  SECTION("not with a new life") { memory.forget("me"); }
  SECTION("not after the verdict") {
    memory.heard(Stop{.attempt = 0, .final_verdict = true}, first_moment);
  }
  SECTION("not who leaves") {
    memory.said(Leaving{15});
    CHECK(memory.ends());  // Nor does it call others to it.
  }
  CHECK_FALSE(memory.could_go_on());
}

TEST_CASE("16.1: a stop before another attempt is no end", "[launcher][round_memory]") {
  RoundMemory memory = in_round(0, 0);
  memory.heard(Stop{.attempt = 0}, first_moment);
  CHECK(memory.could_go_on());
  CHECK_FALSE(memory.finish_heard());
  memory.heard(Finish{}, first_moment);
  CHECK(memory.finish_heard());
}

TEST_CASE("16.1: what is about an earlier round is over, also where its number is the same",
          "[launcher][round_memory]") {
  RoundMemory memory = in_round(2, 4);

  CHECK(memory.is_over(Stop{.attempt = 4, .term = 1}));
  CHECK(memory.is_over(RoundStart{.attempt = 4, .term = 1}));
  CHECK(memory.is_over(RoundStart{.attempt = 9, .term = 1}));
  CHECK(memory.is_over(Stop{.attempt = 3, .term = 2}));
  CHECK_FALSE(memory.is_over(Stop{.attempt = 4, .term = 2}));
  CHECK_FALSE(memory.is_over(RoundStart{.attempt = 4, .term = 2}));
  CHECK_FALSE(memory.is_over(RoundStart{.attempt = 0, .term = 3}));
  CHECK_FALSE(memory.is_over(Finish{}));
  // Another coordinator, of which it knows nothing, has rounds of its own.
  memory.forget("me");
  CHECK_FALSE(memory.is_over(RoundStart{.attempt = 0, .term = 0}));
}

TEST_CASE("16.1: who waits for a place beside a round knows that the round may go on",
          "[launcher][round_memory]") {
  RoundMemory memory;
  CHECK_FALSE(memory.only_waits());  // Nothing has begun that could.
  memory.heard(Succession{.round = {0, 0}, .coordinator = "a", .council = {}, .before = {}},
               first_moment);
  CHECK(memory.only_waits());
  SECTION("not with a place") { memory.heard(RoundStart{.attempt = 1}, first_moment); }
  SECTION("not who leaves") { memory.said(Leaving{15}); }
  SECTION("not after the verdict") { memory.heard(Stop{.final_verdict = true}, first_moment); }
  CHECK_FALSE(memory.only_waits());
}
