// Ctrl-Z, fg and what else may come to a job that is halted: its workers, which have sessions of
// their own, stand still and go on with the launcher.
#include <csignal>

#include "tests/end_to_end/job_place.h"
#include "tests/testing/held_signals.h"
#include "tests/testing/process_state.h"

using namespace ddprun::testing;

namespace {

// As a shell starts a job: a process group of its own, whose first process is the launcher, and a
// parent outside of it that could let it go on.
const std::vector<std::string> by_a_shell = {
    "python3", "-c", "import os, sys; os.setpgrp(); os.execvp(sys.argv[1], sys.argv[1:])"};

// Each with a process that it has started.
struct RunningJob {
  explicit RunningJob(const std::vector<std::string>& start = by_a_shell)
      : job(start +
                two_workers({}, "sleep 300 & echo \"up $RANK pid $pid.\"; until test -e " +
                                    (place.folder / "go") +
                                    "; do sleep 0.01; done; kill $!; wait; echo \"done $RANK\""),
            place.variables()) {
    REQUIRE(wait_for_both_up(job));
  }

  // False: they do not all stand still in time.
  bool pause() {
    job.send_signal(SIGTSTP);
    return job.wait_until([&] {
      const std::vector<int> guards = descendants_running(job.pid(), "ddprun");
      const auto is_halted = [&](int pid) {
        const char state = process_state(pid);
        // A shell whose child is halted before it has become the program waits for that: 'D'.
        return state == 'T' || state == 'D' || state == 'Z' || std::ranges::count(guards, pid) > 0;
      };
      return is_halted(job.pid()) && std::ranges::all_of(descendants_of(job.pid()), is_halted);
    });
  }
  void let_workers_end() { std::ofstream(place.folder / "go") << ""; }

  Place place;
  Process job;
};

}  // namespace

TEST_CASE("Ctrl-Z halts the workers with all that they have started, and fg lets them go on") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  RunningJob paused;
  for (int time = 0; time < 2; ++time) {
    REQUIRE(paused.pause());
    paused.job.send_signal(SIGCONT);
  }
  REQUIRE(paused.pause());
  paused.let_workers_end();
  paused.job.read_pending();
  CHECK_FALSE(contains(paused.job.output(), "done"));

  paused.job.send_signal(SIGCONT);
  const ProcessResult result = paused.job.wait(30s);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "done 0"));
  CHECK(contains(result.output, "done 1"));
  check_nothing_left(paused.place);
}

TEST_CASE("a worker that was halted before Ctrl-Z stays so after fg") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  RunningJob paused;
  const int worker = number_after(paused.job.output(), "up 1 pid ");
  ::kill(worker, SIGSTOP);
  REQUIRE(paused.job.wait_until([&] { return process_state(worker) == 'T'; }));
  REQUIRE(paused.pause());
  paused.let_workers_end();
  paused.job.send_signal(SIGCONT);
  REQUIRE(paused.job.wait_for_output("done 0", 30s));
  CHECK(process_state(worker) == 'T');

  ::kill(worker, SIGCONT);
  const ProcessResult result = paused.job.wait(30s);
  INFO(result.output);
  CHECK(result.status == 0);
}

// As `kill %1` of a shell does.
TEST_CASE("SIGTERM ends a job that is halted") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  RunningJob paused;
  REQUIRE(paused.pause());
  paused.job.send_signal(SIGTERM);
  paused.job.send_signal(SIGCONT);
  const ProcessResult result = paused.job.wait(30s);
  INFO(result.output);
  CHECK(result.status == 75);
  check_nothing_left(paused.place);
}

TEST_CASE("a launcher that is killed while its job is halted leaves nothing") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  RunningJob paused;
  REQUIRE(paused.pause());
  paused.job.send_signal(SIGKILL);
  CHECK(paused.job.wait(30s).status == 128 + SIGKILL);
  check_nothing_left(paused.place);
}

// Nobody would let it go on: the kernel does not halt it.
TEST_CASE("SIGTSTP does not halt a job that belongs to no shell") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  RunningJob running({"setsid"});
  running.job.send_signal(SIGTSTP);
  running.let_workers_end();
  const ProcessResult result = running.job.wait(30s);
  INFO(result.output);
  CHECK(result.status == 0);
  check_nothing_left(running.place);
}
