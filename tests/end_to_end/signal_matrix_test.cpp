// Every handled signal at every stage, with the workers' leader alive or gone: the status is right,
// the end comes within the grace period, and nothing is left, neither process nor file.
#include <csignal>

#include "tests/end_to_end/job_place.h"
#include "tests/testing/held_signals.h"
#include "tests/testing/patience.h"

using namespace ddprun::testing;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct HandledSignal {
  int number;
  const char* name;
  int status;  // Of ddprun, when it is the first.
};
constexpr HandledSignal handled_signals[] = {
    {SIGTERM, "SIGTERM", 75},
    {SIGINT, "SIGINT", 128 + SIGINT},
    {SIGHUP, "SIGHUP", 128 + SIGHUP},
    {SIGQUIT, "SIGQUIT", 128 + SIGQUIT},
};

// Ten times what a job with nothing to wait for needs; a tenth of the usual grace period.
milliseconds soon() { return patience(3s); }
constexpr milliseconds grace{400};
const std::vector<std::string> short_grace = {"--shutdown-timeout", "0.4"};

struct Ending {
  ProcessResult result;
  milliseconds took{0};  // From the signal to the launcher's end.
};

Ending end_by(Process& job, int signal) {
  const auto sent = Clock::now();
  job.send_signal(signal);
  Ending ending{job.wait(30s)};
  ending.took = std::chrono::duration_cast<milliseconds>(Clock::now() - sent);
  return ending;
}

}  // namespace

TEST_CASE("a signal ends a host that waits for nodes, within a second") {
  for (const HandledSignal& signal : handled_signals) {
    INFO(signal.name);
    const Place place;
    Process job(launch_node(0, free_port(), {}, {"/bin/true"}), place.variables());
    REQUIRE(job.wait_for_output("waiting for node 1", 20s));

    const Ending ending = end_by(job, signal.number);

    INFO(ending.result.output);
    CHECK(ending.result.status == signal.status);
    CHECK(ending.took < patience(1s));
    check_nothing_left(place);
  }
}

TEST_CASE("a signal ends a node that waits for its host, within a second") {
  for (const HandledSignal& signal : handled_signals) {
    INFO(signal.name);
    const Place place;
    Process job(launch_node(1, free_port(), {}, {"/bin/true"}), place.variables());
    REQUIRE(job.wait_for_output("waiting for node 0", 20s));

    const Ending ending = end_by(job, signal.number);

    INFO(ending.result.output);
    CHECK(ending.result.status == signal.status);
    CHECK(ending.took < patience(1s));
    check_nothing_left(place);
  }
}

TEST_CASE("a signal ends running workers") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  for (const HandledSignal& signal : handled_signals) {
    INFO(signal.name);
    const Place place;
    Process job(two_workers({}, say_up_and_wait), place.variables());
    REQUIRE(wait_for_both_up(job));

    const Ending ending = end_by(job, signal.number);

    INFO(ending.result.output);
    CHECK(ending.result.status == signal.status);
    CHECK(ending.took < soon());
    check_nothing_left(place);
  }
}

TEST_CASE("a signal is heard, too, where who started us has it blocked") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  const Place place;
  const std::vector<std::string> blocking = {"env", "--block-signal=TERM,CHLD"};
  Process job(blocking + two_workers({}, say_up_and_wait), place.variables());
  REQUIRE(wait_for_both_up(job));

  const Ending ending = end_by(job, SIGTERM);

  INFO(ending.result.output);
  CHECK(ending.result.status == 75);
  CHECK(ending.took < soon());
  check_nothing_left(place);
}

TEST_CASE("what a worker has left is heard of, too, where who started us has SIGCHLD blocked") {
  const Place place;
  const std::vector<std::string> blocking = {"env", "--block-signal=CHLD"};

  const ProcessResult result = run(
      blocking + launch({"--standalone"}) + shell("sleep 300 & exit 3"), 60s, place.variables());

  INFO(result.output);
  CHECK(result.status == 3);
  CHECK(result.seconds < 30);  // The grace of what a failed worker has left.
  check_nothing_left(place);
}

TEST_CASE("a signal that launcher and workers get together is nobody's failure") {
  const Place place;
  Process job(two_workers({}, say_up_and_wait), place.variables());
  REQUIRE(wait_for_both_up(job));
  std::vector<int> workers;
  REQUIRE(job.wait_until([&] {
    workers = descendants_running(job.pid(), "sleep");
    return workers.size() == 2;
  }));

  // So that it finds its workers dead when it hears of its own.
  job.send_signal(SIGSTOP);
  for (const int worker : workers) ::kill(worker, SIGTERM);
  job.send_signal(SIGTERM);
  job.send_signal(SIGCONT);

  const auto result = job.wait(30s);
  INFO(result.output);
  CHECK(result.status == 75);
  CHECK_FALSE(contains(result.output, "FAILED"));
}

TEST_CASE("workers that ignore a signal have their grace and are killed") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  for (const HandledSignal& signal : handled_signals) {
    INFO(signal.name);
    const Place place;
    Process job(two_workers(short_grace, deaf + say_up_and_wait), place.variables());
    REQUIRE(wait_for_both_up(job));

    const Ending ending = end_by(job, signal.number);

    INFO(ending.result.output);
    CHECK(ending.result.status == signal.status);
    CHECK(ending.took >= grace);
    CHECK(ending.took < grace + soon());
    const std::string said = "ranks 0, 1 did not end within 400 ms of " + std::string(signal.name);
    CHECK(contains(ending.result.output, said + ": SIGKILL"));
    CHECK(ending.result.output.find(said) == ending.result.output.rfind(said));
    check_nothing_left(place);
  }
}

TEST_CASE("a signal ends what a worker that is gone has left behind") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  for (const HandledSignal& signal : handled_signals) {
    INFO(signal.name);
    const Place place;
    Process job(two_workers(short_grace, leave_a_child), place.variables());
    REQUIRE(job.wait_for_output("up 1", 20s));
    REQUIRE(job.wait_for_output(".\n", 20s));
    REQUIRE(wait_until_gone({number_after(job.output(), " of ")}, 20s));
    REQUIRE_FALSE(wait_until_gone({number_after(job.output(), "child ")}, 0s));

    const Ending ending = end_by(job, signal.number);

    INFO(ending.result.output);
    CHECK(ending.result.status == signal.status);
    CHECK(ending.took < grace + soon());
    check_nothing_left(place);
  }
}

TEST_CASE("14.6: what workers leave behind does not hold up a success for --shutdown-timeout") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  for (const int code : {0, 7}) {
    const Place place;
    // Deaf to SIGTERM from its first moment on.
    const std::string worker =
        deaf + "sleep 300 & echo \"child $!.\"; exit " + std::to_string(code);
    const std::string grace = code == 0 ? "10000" : "0.4";
    const auto started = Clock::now();

    const auto result = run(launch({"--standalone", "--shutdown-timeout", grace}) + shell(worker),
                            60s, place.variables());

    INFO(result.output);
    const auto took = Clock::now() - started;
    CHECK(result.status == code);
    CHECK(took < (code == 0 ? 5s : 1s) + soon());
    CHECK((code != 0 || took >= 5s));
    CHECK(contains(result.output,
                   "killing pid " + std::to_string(number_after(result.output, "child ")) +
                       " (sleep), which a worker left behind and SIGTERM did not end"));
    check_nothing_left(place);
  }
}

TEST_CASE("a second signal while workers are stopped: Ctrl-C kills, others wait for the grace") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  for (const HandledSignal& signal : handled_signals) {
    INFO(signal.name);
    const bool impatient = signal.number == SIGINT || signal.number == SIGQUIT;
    const Place place;
    const std::vector<std::string> long_grace = {"--shutdown-timeout", "100"};
    Process job(two_workers(impatient ? long_grace : short_grace, deaf + say_up_and_wait),
                place.variables());
    REQUIRE(wait_for_both_up(job));
    job.send_signal(SIGTERM);
    REQUIRE(job.wait_for_output("stopping 2 workers", 20s));

    const Ending ending = end_by(job, signal.number);

    INFO(ending.result.output);
    CHECK(ending.result.status == 75);  // The first signal's.
    CHECK(ending.took < grace + soon());
    CHECK(contains(ending.result.output, "killing 2 workers") == impatient);
    check_nothing_left(place);
  }
}

TEST_CASE("a second Ctrl-C also kills what a worker that is gone has left behind") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  const Place place;
  Process job(two_workers({"--shutdown-timeout", "100"}, leave_a_child), place.variables());
  REQUIRE(job.wait_for_output("up 1", 20s));
  REQUIRE(job.wait_for_output(".\n", 20s));
  REQUIRE(wait_until_gone({number_after(job.output(), " of ")}, 20s));
  const int rank_1 = number_after(job.output(), "up 1 pid ");
  job.send_signal(SIGINT);
  REQUIRE(wait_until_gone({rank_1}, 20s));  // Only the child is left to wait for.

  const Ending ending = end_by(job, SIGINT);

  INFO(ending.result.output);
  CHECK(ending.result.status == 128 + SIGINT);
  CHECK(ending.took < soon());
  check_nothing_left(place);
}

TEST_CASE("a signal while a failed job stops does not hide the cause") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  for (const HandledSignal& signal : handled_signals) {
    INFO(signal.name);
    const Place place;
    Process job(two_workers(short_grace,
                            deaf + "echo \"up $RANK\"; test $RANK = 0 || exit 7; exec sleep 300"),
                place.variables());
    REQUIRE(job.wait_for_output("ended with exit code 7", 20s));

    const Ending ending = end_by(job, signal.number);

    INFO(ending.result.output);
    CHECK(ending.result.status == 7);
    CHECK(ending.took < grace + soon());
    CHECK(place.is_deserted(5s));
  }
}
