// The line that SIGUSR1 asks for, and the one that an attempt begins with.
#include "launcher/report/job_status.h"

#include "tests/testing/catch.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;

TEST_CASE("the status says which attempt runs, since when, and which workers are left",
          "[launcher][status]") {
  JobStatus status{.in_attempt = true, .since = 12s, .join_timeout = 600s, .pids = {41}};
  CHECK(to_text(status) == "attempt 0 for 12 s: rank 0 of 1; 1 of 1 worker running here: pid 41");
  status.attempt = 2;
  status.nodes = 2;
  status.node_rank = 1;
  status.rank_base = 4;
  status.workers = 4;
  status.world_size = 8;
  status.pids = {41, 43};
  CHECK(
      to_text(status) ==
      "attempt 2 for 12 s: node 1 of 2, ranks 4 to 7 of 8; 2 of 4 workers running here: pid 41 43");
  status.spares = 4;
  status.spares_ready = 1;
  CHECK(to_text(status) ==
        "attempt 2 for 12 s: node 1 of 2, ranks 4 to 7 of 8; 2 of 4 workers running here, 1 of 4 "
        "spares ready: pid 41 43");
  status.spares = 0;
  status.pids.clear();
  CHECK(to_text(status) ==
        "attempt 2 for 12 s: node 1 of 2, ranks 4 to 7 of 8; 0 of 4 workers running here");
}

TEST_CASE("before the first attempt the status says what is waited for", "[launcher][status]") {
  const JobStatus status{.since = 30s, .join_timeout = 600s};
  CHECK(to_text(status) == "waiting for the other nodes for 30 s, at most 600 s in all");
}

TEST_CASE("an attempt is announced unless it is the first one of a job on one node",
          "[launcher][status]") {
  ddprun::rendezvous::RoundStart round{.attempt = 0, .group_world_size = 1, .world_size = 2};
  CHECK(round_text(round, 2, false).empty());
  CHECK(round_text(round, 2, true) == "attempt 0: 2 workers");
  round.attempt = 3;
  CHECK(round_text(round, 2, false) == "attempt 3: 2 workers");
  round.group_rank = 1;
  round.group_world_size = 2;
  round.rank_base = 2;
  round.world_size = 4;
  CHECK(round_text(round, 2, true) ==
        "attempt 3: 2 nodes, 4 workers; this is node 1 with ranks 2 to 3");
  CHECK(round_text(round, 1, true) == "attempt 3: 2 nodes, 4 workers; this is node 1 with rank 2");
}
