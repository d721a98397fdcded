// Which exit statuses become which others.
#include "launcher/options/exit_code_map.h"

#include "launcher/options/launch_options.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::rendezvous::FirstCause;
using ddprun::testing::contains;

namespace {

std::map<int, int> map_of(const std::string& text) { return parse_exit_code_map({text, "--e"}); }

std::string refusal_of(const std::string& text) {
  try {
    map_of(text);
  } catch (const UsageExit& exit) {
    CHECK(exit.status() == 2);
    return exit.what();
  }
  return "accepted";
}

FirstCause worker_ended(int code, int signal = 0) {
  FirstCause cause;
  cause.kind = FirstCause::Kind::WorkerFailed;
  cause.exit_code = code;
  cause.signal = signal;
  return cause;
}

}  // namespace

TEST_CASE("17.3: names of ddprun's exit statuses stand for their numbers", "[exit]") {
  CHECK(map_of("").empty());
  CHECK(map_of("lost=138") == std::map<int, int>{{74, 138}});
  CHECK(map_of("unfit=9,internal=1,timeout=2,coordinator=3,refused=4,lost=5,preempted=255") ==
        std::map<int, int>{{69, 9}, {70, 1}, {71, 2}, {72, 3}, {73, 4}, {74, 5}, {75, 255}});
  for (const char* wrong : {"lost", "lots=1", "=1", ",", "lost=138,", "74=138"}) {
    CHECK(contains(refusal_of(wrong),
                   "unfit, internal, timeout, coordinator, refused, lost, preempted"));
  }
  for (const char* wrong : {"lost=0", "lost=256", "lost=", "lost=x"}) {
    CHECK(contains(refusal_of(wrong), "at least 1 and at most 255"));
  }
}

TEST_CASE("17.3: a worker's own code is not mapped, but for the one that ddprun shares", "[exit]") {
  const auto map = map_of("lost=138,preempted=139");
  CHECK(mapped_exit_status(map, 74, std::nullopt) == 138);
  FirstCause lost;
  lost.kind = FirstCause::Kind::NodeLost;
  CHECK(mapped_exit_status(map, 74, lost) == 138);
  CHECK(mapped_exit_status(map, 74, worker_ended(74)) == 74);
  CHECK(mapped_exit_status(map, 75, worker_ended(75)) == 139);
  CHECK(mapped_exit_status(map, 75, std::nullopt) == 139);
  for (const int other : {0, 1, 2, 70, 137}) {
    CHECK(mapped_exit_status(map, other, std::nullopt) == other);
  }
  // The launcher was stopped while a worker had already failed by a signal.
  CHECK(mapped_exit_status(map, 75, worker_ended(0, 9)) == 139);
}
