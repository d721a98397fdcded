// ddprun --spares with real programs: who takes whose place, and what is left behind: nothing.
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/endless_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/json_lines.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::testing;

namespace {

const std::vector<std::string> spare_worker = {DDPRUN_SPARE_WORKER};

std::vector<std::string> with_spares(int spares, const std::vector<std::string>& more,
                                     const std::vector<std::string>& program) {
  return launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--spares",
                 std::to_string(spares), "--forward-signals", "USR1"}) +
         more + program;
}

// A job with an event log, which tells when spares are ready: what they say of it comes before.
struct Job {
  explicit Job(const std::vector<std::string>& program, const std::vector<std::string>& more = {},
               int spares = 2)
      : process(with_spares(
            spares, std::vector<std::string>{"--event-log", folder / "events"} + more, program)) {}

  // The pids in events of this name, by local rank; the last one counts.
  std::map<int, int> pids(const std::string& name) const {
    std::map<int, int> found;
    for (const auto& event : whole_json_lines(folder / "events")) {
      if (event.at("event") == name) found[event.at("local_rank")] = event.at("spare_pid");
    }
    return found;
  }
  bool wait_until(const std::function<bool()>& done) { return process.wait_until(done); }
  bool wait_until_ready(std::size_t spares) {
    return wait_until([&] { return pids("spare_ready").size() == spares; });
  }
  bool wait_for_workers(int attempt) {
    const std::string start = "attempt " + std::to_string(attempt) + " rank ";
    return process.wait_for_output(start + "0 of 2", 60s) &&
           process.wait_for_output(start + "1 of 2", 60s);
  }
  int pid_of(int attempt, int rank) const {
    return number_after(process.output(), "attempt " + std::to_string(attempt) + " rank " +
                                              std::to_string(rank) + " of 2 is pid ");
  }

  TemporaryFolder folder;
  Process process;
};

}  // namespace

TEST_CASE("a killed worker and those stopped with it are replaced by their spares") {
  Job job(spare_worker);
  REQUIRE(job.wait_for_workers(0));
  REQUIRE(job.wait_until_ready(2));
  const auto spares = job.pids("spare_ready");

  ::kill(job.pid_of(0, 1), SIGKILL);

  INFO(job.process.output());
  REQUIRE(job.wait_for_workers(1));
  for (const auto& [local_rank, pid] : spares) {
    CHECK(job.pid_of(1, local_rank) == pid);
    const std::string text = std::to_string(local_rank);
    // Before it had a rank, its output was the spare's; what it says of its rank is the worker's.
    CHECK(contains(job.process.output(),
                   "[spare" + text + "]:pid " + std::to_string(pid) + " warms up\n"));
    CHECK(contains(job.process.output(), "\nattempt 1 rank " + text + " of 2 is pid " +
                                             std::to_string(pid) + " nice " +
                                             std::to_string(::getpriority(PRIO_PROCESS, 0))));
  }
  // And they have spares again.
  CHECK(job.wait_until([&] { return job.pids("spare_started").at(0) != spares.at(0); }));
  finish({&job.process});
}

TEST_CASE("local ranks without a spare are started cold beside those with one") {
  Job job(spare_worker, {}, 1);
  REQUIRE(job.wait_for_workers(0));
  REQUIRE(job.wait_until_ready(1));

  ::kill(job.pid_of(0, 0), SIGKILL);

  REQUIRE(job.wait_for_workers(1));
  CHECK(job.pid_of(1, 0) == job.pids("spare_ready").at(0));
  CHECK_FALSE(contains(job.process.output(), "[spare1]"));
  finish({&job.process});
}

TEST_CASE("a spare that dies while it waits is replaced, and is no failure of the job") {
  Job job(spare_worker, {}, 1);
  REQUIRE(job.wait_for_workers(0));
  REQUIRE(job.wait_until_ready(1));
  const int first = job.pids("spare_ready").at(0);

  ::kill(first, SIGKILL);

  CHECK(job.wait_until([&] { return job.pids("spare_ready").at(0) != first; }));
  CHECK(job.pids("spare_ended").at(0) == first);
  INFO(job.process.output());
  CHECK(contains(job.process.output(),
                 "the spare of place 0 (pid " + std::to_string(first) + ") was killed by SIGKILL"));
  CHECK_FALSE(contains(job.process.output(), "attempt 1"));
  finish({&job.process});
}

TEST_CASE("nobody waits for a spare that is not ready") {
  Job job(spare_worker + std::vector<std::string>{"never"});
  REQUIRE(job.wait_for_workers(0));
  REQUIRE(job.wait_until([&] { return job.pids("spare_started").size() == 1; }));

  ::kill(job.pid_of(0, 1), SIGKILL);

  REQUIRE(job.wait_for_workers(1));
  CHECK(job.pid_of(1, 0) != job.pids("spare_started").at(0));
  finish({&job.process});
}

TEST_CASE("a launcher that ends, however it does, leaves no spare behind") {
  for (const int signal : {SIGTERM, SIGKILL}) {
    Job job(spare_worker);
    REQUIRE(job.wait_for_workers(0));
    REQUIRE(job.wait_until_ready(2));
    const auto spares = job.pids("spare_ready");

    job.process.send_signal(signal);

    CHECK(job.process.wait(60s).ended);
    CHECK(wait_until_gone({spares.at(0), spares.at(1)}, 20s));
  }
}

TEST_CASE("a spare gets rank and world of the round that needs it") {
  const std::uint16_t port = free_port();
  const auto node = [&](const std::string& log) {
    return launch({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                   "127.0.0.1:" + std::to_string(port), "--rdzv-conf", "last_call_timeout=1",
                   "--nproc-per-node", "1", "--spares", "1", "--forward-signals", "USR1",
                   "--event-log", log}) +
           spare_worker;
  };
  TemporaryFolder folder;
  Process first(node(folder / "first"));
  REQUIRE(first.wait_for_output("attempt 0 rank 0 of 1", 60s));
  REQUIRE(first.wait_for_output("warms up", 60s));
  REQUIRE(first.wait_until([&] { return contains(content_of(folder / "first"), "spare_ready"); }));
  const int spare = number_after(first.output(), "[spare0]:pid ");

  Process second(node(folder / "second"));

  REQUIRE(first.wait_for_output("attempt 1 rank 0 of 2 is pid " + std::to_string(spare), 60s));
  REQUIRE(second.wait_for_output("attempt 1 rank 1 of 2", 60s));
  finish({&first, &second});
}

TEST_CASE("16.2: a node that stands by beside a job has its spare ready when its turn comes") {
  const std::uint16_t port = free_port();
  TemporaryFolder folder;
  const auto node = [&](const std::string& name) {
    return launch({"--nnodes", "2:2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                   "127.0.0.1:" + std::to_string(port), "--nproc-per-node", "1", "--spares", "1",
                   "--max-restarts", "1", "--forward-signals", "USR1", "--event-log",
                   folder / name}) +
           spare_worker;
  };
  Process first(node("first"));
  REQUIRE(
      first.wait_until([&] { return contains(content_of(folder / "first"), "endpoint_opened"); }));
  Process second(node("second"));
  REQUIRE(second.wait_for_output("attempt 0 rank 1 of 2", 60s));

  Process third(node("third"));

  REQUIRE(third.wait_until([&] { return contains(content_of(folder / "third"), "spare_ready"); }));
  const int spare = number_after(third.output(), "[spare0]:pid ");
  CHECK_FALSE(contains(third.output(), "attempt 0"));
  second.send_signal(SIGKILL);
  REQUIRE(third.wait_for_output("attempt 1 rank 1 of 2 is pid " + std::to_string(spare), 60s));
  REQUIRE(first.wait_for_output("attempt 1 rank 0 of 2", 60s));
  finish({&first, &third});
  CHECK(wait_until_gone({spare}, 20s));
}

TEST_CASE("a program that knows nothing of spares does not train alone, and says why once") {
  Process ignorant(with_spares(1, {},
                               shell("trap 'exit 0' USR1; [ $RANK = spare ] && exit 0; "
                                     "echo rank $RANK; while :; do sleep 0.02; done")));
  REQUIRE(ignorant.wait_for_output("it did not ask for a rank", 60s));
  INFO(ignorant.output());
  CHECK(contains(ignorant.output(), "the job goes on without spares"));
  finish({&ignorant});
}

TEST_CASE("a Python program is kept ready by ten lines of its own") {
  if (std::system("python3 -c 0 >/dev/null 2>&1") != 0) DDPRUN_SKIP("no python3");
  Job job({"/usr/bin/env", "python3", "-u", "-c",
           "import sys, signal; sys.path.insert(0, '" DDPRUN_SOURCE_DIR "/examples'); "
           "sys.dont_write_bytecode = True\n"
           "import os, wait_for_rank as hook\n"
           "hook.wait_for_rank()\n"
           "e = os.environ\n"
           "print('attempt', e['TORCHELASTIC_RESTART_COUNT'], 'rank', e['RANK'], 'of', "
           "e['WORLD_SIZE'], 'is pid', os.getpid(), flush=True)\n"
           "signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))\n"
           "while True: signal.pause()"});
  REQUIRE(job.wait_for_workers(0));
  REQUIRE(job.wait_until_ready(2));

  ::kill(job.pid_of(0, 0), SIGKILL);

  REQUIRE(job.wait_for_workers(1));
  CHECK(job.pid_of(1, 0) == job.pids("spare_ready").at(0));
  CHECK(job.pid_of(1, 1) == job.pids("spare_ready").at(1));
  job.process.send_signal(SIGTERM);
  CHECK(job.process.wait(60s).ended);
}

TEST_CASE("a shell is kept ready by two lines, and its files are the spare's and then the rank's") {
  const std::string hook =
      "fd=${DDPRUN_SPARE_FD:-}; if [ \"$fd\" ]; then echo warm; echo >&$fd; "
      "while IFS= read -r -d '' entry && [ \"$entry\" ]; do export \"$entry\"; done <&$fd; fi; ";
  TemporaryFolder logs;
  Job job(
      {"/bin/bash", "-c",
       "trap 'exit 0' USR1; " + hook +
           "echo attempt $TORCHELASTIC_RESTART_COUNT rank $RANK of $WORLD_SIZE is pid $BASHPID; "
           "while :; do sleep 0.02; done"},
      {"--log-dir", logs.path(), "--tee", "1"});
  REQUIRE(job.wait_for_workers(0));
  REQUIRE(job.wait_until_ready(2));

  ::kill(job.pid_of(0, 1), SIGKILL);

  REQUIRE(job.wait_for_workers(1));
  CHECK(job.pid_of(1, 1) == job.pids("spare_ready").at(1));
  const std::string run = std::filesystem::directory_iterator(logs.path())->path();
  CHECK(content_of(run + "/spare_1/stdout.log").rfind("warm\n", 0) == 0);
  // A file has a thread of its own, which the console does not wait for.
  CHECK(job.process.wait_until([&] {
    return content_of(run + "/attempt_1/1/stdout.log").rfind("attempt 1 rank 1 of 2", 0) == 0;
  }));
  job.process.send_signal(SIGTERM);
  CHECK(job.process.wait(60s).ended);
}

TEST_CASE("what a spare has started goes with it, and not with the attempt that it waits beside") {
  const std::string hook =
      "fd=${DDPRUN_SPARE_FD:-}; if [ \"$fd\" ]; then (sleep 300 & echo helper $!); echo >&$fd; "
      "while IFS= read -r -d '' entry && [ \"$entry\" ]; do export \"$entry\"; done <&$fd; fi; ";
  Job job({"/bin/bash", "-c",
           hook + "echo attempt $TORCHELASTIC_RESTART_COUNT rank $RANK of $WORLD_SIZE is pid "
                  "$BASHPID; while :; do sleep 0.02; done"});
  const auto helpers = [&] {
    std::vector<int> pids;
    const std::string text = ":helper ";
    const std::string& output = job.process.output();
    for (auto at = output.find(text); at != output.npos; at = output.find(text, at + 1)) {
      pids.push_back(std::stoi(output.substr(at + text.size())));
    }
    return pids;
  };
  REQUIRE(job.wait_for_workers(0));
  REQUIRE(job.wait_until_ready(2));
  REQUIRE(job.wait_until([&] { return helpers().size() == 2; }));
  const auto spares = job.pids("spare_ready");

  ::kill(job.pid_of(0, 1), SIGKILL);

  REQUIRE(job.wait_for_workers(1));
  CHECK(job.pid_of(1, 1) == spares.at(1));
  for (const int pid : helpers()) CHECK_FALSE(wait_until_gone({pid}, 0s));
  REQUIRE(job.wait_until([&] {
    const auto again = job.pids("spare_ready");
    return again.at(0) != spares.at(0) && again.at(1) != spares.at(1);
  }));
  REQUIRE(job.wait_until([&] { return helpers().size() == 4; }));
  job.process.send_signal(SIGTERM);
  const auto result = job.process.wait(60s);
  INFO(result.output);
  CHECK(result.ended);
  CHECK(wait_until_gone(helpers(), 10s));
}
