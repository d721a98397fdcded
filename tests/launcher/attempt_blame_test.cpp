// Who is blamed of an attempt's workers, from what they have left: ends, error files, printed
// words.
#include "launcher/attempt_blame.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::launcher;
using ddprun::testing::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

constexpr WallNs second = 1'000'000'000;
const std::string lost_peer = "RuntimeError: Connection closed by peer [127.0.0.1]:2345";
const std::string plain =
    "Traceback (most recent call last):\n"
    "  File \"train.py\", line 1, in <module>\n"
    "ValueError: the labels are wrong\n";
// As PyTorch's hook prints what nobody has caught.
const std::string uncaught =
    "[rank5]: Traceback (most recent call last):\n"
    "[rank5]:   File \"train.py\", line 1, in <module>\n"
    "[rank5]: ValueError: the labels are wrong\n";

// An attempt of two workers, ranks 4 and 5, that began ten seconds ago.
struct Attempt {
  Attempt() {
    record.round.attempt = 2;
    record.round.group_rank = 1;
    record.round.group_world_size = 1;
    record.round.rank_base = 4;
    record.folder = folder.path();
    record.began_at = wall_now() - 10 * second;
    record.workers = 2;
    record.pids = {1'000'001, 1'000'002};  // No process has them.
    record.outputs.resize(2);
  }

  void ends(int local_rank, int exit_code, const std::string& message, bool stopped = false) {
    WorkerEnd end{.rank = 4 + local_rank,
                  .local_rank = local_rank,
                  .pid = record.pids.at(static_cast<std::size_t>(local_rank)),
                  .exit_code = exit_code,
                  .stopped_by_us = stopped,
                  .message = message,
                  .when = std::chrono::steady_clock::now()};
    record.ends.push_back(end);
  }
  void records(int local_rank, const std::string& message, WallNs before_now) {
    const fs::path file = fs::path(folder.path()) / std::to_string(local_rank) / "error.json";
    fs::create_directories(file.parent_path());
    std::ofstream(file) << R"({"message": {"message": ")" << message
                        << R"(", "extraInfo": {"timestamp": ")"
                        << (wall_now() - before_now) / second << R"("}}})";
  }

  TemporaryFolder folder;
  AttemptRecord record;
  std::map<int, std::string> printed;
  AttemptBlame blame{record, "host-b", [this](int local_rank) { return printed[local_rank]; }};
};

}  // namespace

TEST_CASE("the first that names an error of its own is blamed, and not who lost a peer",
          "[launcher][blame]") {
  Attempt attempt;
  attempt.ends(0, 1, lost_peer);
  attempt.ends(1, 3, "ValueError: no such label");

  const auto cause = attempt.blame.of_first_failure();
  CHECK(cause.rank == 5);
  CHECK(cause.exit_code == 3);
  CHECK(cause.host == "host-b");
  CHECK(cause.node_rank == 1);
  CHECK(cause.attempt == 2);
  CHECK_FALSE(cause.of_a_peer);
}

TEST_CASE("who was stopped, or has done its work, has not failed", "[launcher][blame]") {
  Attempt attempt;
  attempt.ends(0, 1, "KeyboardInterrupt", /*stopped=*/true);
  attempt.ends(1, 1, lost_peer);
  CHECK(attempt.blame.of_first_failure().rank == 5);

  attempt.record.ends.clear();
  attempt.ends(0, 0, "");
  attempt.ends(1, 1, lost_peer);
  const auto early = attempt.blame.of_first_failure();
  CHECK(early.rank == 5);
  CHECK(check_contains(early.advice, "rank 4"));
}

TEST_CASE("an error that was recorded before is the cause, with the end of who has ended",
          "[launcher][blame]") {
  Attempt attempt;
  attempt.records(1, "ValueError: no such label", 5 * second);
  attempt.ends(0, 7, lost_peer);

  const auto cause = attempt.blame.of_first_failure();
  CHECK(cause.rank == 5);
  CHECK(check_contains(cause.message, "no such label"));
  CHECK(cause.exit_code == 7);
  CHECK(check_contains(cause.ended_first, "rank 4"));
}

TEST_CASE("a worker whose exception has not ended it is the reason of a lost peer",
          "[launcher][blame]") {
  Attempt attempt;
  attempt.printed[1] = uncaught;
  attempt.ends(0, 1, lost_peer);

  CHECK_FALSE(attempt.blame.awaits_cause(1));  // It is known.
  const auto cause = attempt.blame.of_first_failure();
  CHECK(cause.rank == 5);
  CHECK(check_contains(cause.message, "the labels are wrong"));
  CHECK(check_contains(cause.advice, "did not end"));

  // Of one that is parked, or of a failure that has its own reason, it is none.
  attempt.record.parked = {attempt.record.pids[1]};
  CHECK(attempt.blame.of_first_failure().rank == 4);
  attempt.record.parked.clear();
  attempt.record.ends.front().message = "MemoryError";
  CHECK(attempt.blame.of_first_failure().rank == 4);
}

TEST_CASE("a halted worker is the reason of a lost peer", "[launcher][blame]") {
  Attempt attempt;
  const pid_t halted = ::fork();
  if (halted == 0) {
    ::kill(::getpid(), SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(halted, &status, WUNTRACED) == halted);
  attempt.record.pids[1] = halted;
  attempt.ends(0, 1, lost_peer);

  const auto cause = attempt.blame.of_first_failure();
  CHECK(cause.rank == 5);
  CHECK(cause.halted);
  CHECK(check_contains(cause.message, "rank 5 was halted"));
  ::kill(halted, SIGKILL);
  ::waitpid(halted, nullptr, 0);
}

TEST_CASE("where only peers were lost, whoever still runs may say why, here or on another node",
          "[launcher][blame]") {
  Attempt attempt;
  attempt.ends(0, 1, lost_peer);
  CHECK(attempt.blame.awaits_cause(1));
  CHECK_FALSE(attempt.blame.awaits_cause(0));
  attempt.record.round.group_world_size = 2;
  CHECK(attempt.blame.awaits_cause(0));
  attempt.ends(1, 1, "ValueError: no such label");
  CHECK_FALSE(attempt.blame.awaits_cause(0));
}

TEST_CASE("before a stop counts what a worker had recorded by then", "[launcher][blame]") {
  Attempt attempt;
  attempt.records(0, "ValueError: no such label", 2 * second);
  CHECK_FALSE(attempt.blame.error_before_stop());

  attempt.record.stopped_at = wall_now() - 5 * second;
  CHECK_FALSE(attempt.blame.error_before_stop());
  attempt.record.stopped_at = wall_now();
  REQUIRE(attempt.blame.error_before_stop());
  CHECK(attempt.blame.error_before_stop()->rank == 4);

  // Who ended with 0 got over it.
  attempt.ends(0, 0, "");
  CHECK_FALSE(attempt.blame.error_before_stop());
}

TEST_CASE("who was killed for standing still has that for its reason", "[launcher][blame]") {
  Attempt attempt;
  attempt.record.lost[0] = {.stood_ms = 60'000, .why = "it stood still"};
  WorkerEnd end{.rank = 4, .local_rank = 0, .pid = attempt.record.pids[0], .signal = SIGKILL};
  CHECK(attempt.blame.message_of(end) == "it stood still");
  CHECK(attempt.blame.of_end(end).hung_ms == 60'000);

  end.stopped_by_us = true;
  CHECK(attempt.blame.message_of(end).empty());
  end.stopped_by_us = false;
  attempt.record.lost.clear();
  end.signal = 0;
  end.exit_code = 1;
  end.stderr_tail = plain;
  CHECK(check_contains(attempt.blame.message_of(end), "the labels are wrong"));
}
