// ddprun on one node, with workers that are shell commands: the start, the result, the end.
#include <csignal>
#include <filesystem>
#include <map>
#include <sstream>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"
#include "tests/testing/held_signals.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::testing;

namespace {

// Each worker says that it runs and then waits to be stopped.
const std::vector<std::string> waiting_workers = shell("echo \"up $RANK\"; exec sleep 300");

// Of the lines NAME=VALUE that begin with `start`; a value ends at the first blank.
using Environment = std::map<std::string, std::string>;
Environment environment_of(const std::string& text, const std::string& start) {
  Environment found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (!line.starts_with(start) || line.find(' ', start.size()) < equals) continue;
    const std::string value = line.substr(equals + 1);
    found[line.substr(start.size(), equals - start.size())] = value.substr(0, value.find(' '));
  }
  return found;
}

bool wait_for_both_up(Process& job) {
  return job.wait_for_output("up 0", 20s) && job.wait_for_output("up 1", 20s);
}

}  // namespace

TEST_CASE("every worker is told its rank and the size of the world") {
  const auto result = run(launch({"--nproc-per-node", "3"}) +
                              shell("echo \"rank $RANK/$WORLD_SIZE local $LOCAL_RANK/"
                                    "$LOCAL_WORLD_SIZE attempt $TORCHELASTIC_RESTART_COUNT\""),
                          20s);

  INFO(result.output);
  CHECK(result.status == 0);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string text = std::to_string(rank);
    CHECK(contains(result.output, "rank " + text + "/3 local " + text + "/3 attempt 0"));
  }
}

TEST_CASE("a standalone job needs no free well-known port") {
  const auto job = launch({"--standalone", "--nproc_per_node=2"}) +
                   shell("echo \"store at $MASTER_ADDR:$MASTER_PORT\"; test -n \"$MASTER_PORT\"");
  Process first(job), second(job);

  CHECK(first.wait(20s).status == 0);
  CHECK(second.wait(20s).status == 0);
}

TEST_CASE("the first failing worker ends the job with its exit code and its name") {
  const auto result =
      run(launch({"--standalone", "--nproc-per-node", "2"}) +
              shell("if [ $RANK = 1 ]; then echo 'disk on fire' >&2; exit 7; fi; exec sleep 300"),
          20s);

  INFO(result.output);
  CHECK(result.status == 7);
  CHECK(contains(result.output, "rank 1"));
  CHECK(contains(result.output, "disk on fire"));
}

TEST_CASE(
    "a restart whose files have no place goes on without them, and shows what they would have") {
  const TemporaryFolder folder;
  // A file in the place of the run's folder stands for a disk that is full by then.
  const std::string lose_folder =
      "run=$(dirname \"$(dirname \"$(dirname \"$TORCHELASTIC_ERROR_FILE\")\")\"); "
      "rm -rf \"$run\"; : > \"$run\"; exit 3";
  const auto result = run(launch({"--standalone", "--max-restarts", "1", "--redirects", "1",
                                  "--log-dir", folder / "logs"}) +
                              shell("if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then " + lose_folder +
                                    "; fi; echo \"went on with '$TORCHELASTIC_ERROR_FILE'\""),
                          20s);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "workers of attempt 1 have no log and error files on this node"));
  CHECK(contains(result.output, "went on with ''"));
}

TEST_CASE("the launcher may have many files open, its workers as many as it was given") {
  const auto result = run({"/bin/bash", "-c",
                           "ulimit -S -n 256; exec " + binary("ddprun") +
                               " --standalone sh -c 'echo \"worker $(ulimit -n)\"; "
                               "grep \"open files\" /proc/$PPID/limits'"},
                          20s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "worker 256\n"));
  CHECK_FALSE(contains(result.output, "files            256 "));
  CHECK(contains(result.output, "Max open files"));
}

TEST_CASE("14.3: with any number of descriptors a job runs or says at once that they are too few") {
#ifdef __SANITIZE_ADDRESS__
  DDPRUN_SKIP(
      "UBSan opens a pipe to see whether an object may be read, and blames it where it cannot");
#endif
  int succeeded = 0;
  for (int descriptors = 4; descriptors <= 30; ++descriptors) {
    for (const std::string workers : {"1", "2"}) {
      const auto result =
          run({"/bin/bash", "-c",
               "ulimit -n " + std::to_string(descriptors) + "; exec " + binary("ddprun") +
                   " --standalone --nproc-per-node " + workers + " true"},
              20s);
      INFO(descriptors << " for " << workers << ": " << result.output);
      CHECK(result.ended);
      // With 3, or what ctest hands down on top, no program can load a library.
      const bool loaded = !contains(result.output, "error while loading shared libraries");
      CHECK((result.status == 0 || !loaded || contains(result.output, "ulimit -n")));
      succeeded += result.status == 0;
    }
  }
  CHECK(succeeded > 0);
}

TEST_CASE("a host with too few descriptors for the job's nodes says so and waits for none") {
  const auto start = [](const std::string& nodes) {
    return run({"/bin/bash", "-c",
                "ulimit -n 50; exec " + binary("ddprun") + " --nnodes " + nodes +
                    " --master-addr 127.0.0.1 --master-port " + std::to_string(free_port()) +
                    " --rdzv-conf join_timeout=1 true"},
               20s);
  };

  const auto too_many = start("60");
  INFO(too_many.output);
  CHECK(too_many.status == 70);
  CHECK(contains(too_many.output, "the host of a job of 60 nodes needs 63 file descriptors"));
  const auto few = start("3");
  INFO(few.output);
  CHECK(few.status == 71);
}

TEST_CASE("more workers than the store has room for are told of once, and of what to do") {
  const auto result = run({"/bin/bash", "-c",
                           "ulimit -n 700; exec " + binary("ddprun") +
                               " --standalone --nproc-per-node 70 --max-restarts 1 "
                               "sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ]'"},
                          30s);

  INFO(result.output);
  CHECK(result.status == 0);
  const std::string word = "leaves 64 connections for the job's store, and 70 workers";
  const std::size_t first = result.output.find(word);
  CHECK(first != std::string::npos);
  CHECK(result.output.find(word, first + 1) == std::string::npos);
}

TEST_CASE("a limit on files that the launcher meets costs what was written, not the job") {
  const TemporaryFolder folder;
  const auto result = run(
      {"/bin/bash", "-c",
       "ulimit -f 100; exec " + binary("ddprun") + " --standalone --tee 1 --log-dir " +
           folder.path() +
           " sh -c 'head -c 300000 /dev/zero | tr \\\\0 x; echo; echo \"the end\" >&2; exit 3'"},
      20s);
  INFO(result.output.substr(std::max<std::size_t>(result.output.size(), 2000) - 2000));
  CHECK(result.status == 3);
  CHECK(contains(result.output, "the end"));
  CHECK(contains(result.output, "File too large"));
}

TEST_CASE("with streams that are closed a job runs, and nothing is written elsewhere") {
  const TemporaryFolder folder;
  const auto result =
      run({"/bin/bash", "-c",
           "exec 1>&- 2>&- <&-; exec " + binary("ddprun") + " --standalone --report " +
               (folder / "report.json") + " sh -c 'echo out; echo err >&2; exit 5'"},
          20s);
  CHECK(result.status == 5);
  CHECK(contains(content_of(folder / "report.json"), "exit_status\":"));
}

TEST_CASE("where only the current folder can be written, error files go there") {
  const auto result =
      run({"unshare", "--map-root-user", "--mount", "sh", "-c",
           "mount -t tmpfs none /mnt && cd /mnt && for place in /tmp /var/tmp; do "
           "mount --rbind $place $place && mount -o remount,ro,bind $place || exit 77; done; "
           "unset TMPDIR TEMP TMP; exec " +
               binary("ddprun") + " --standalone sh -c 'echo it is $TORCHELASTIC_ERROR_FILE'"},
          20s);
  if (result.status == 77 || contains(result.output, "unshare failed")) {
    DDPRUN_SKIP("this user may not mount a file system");
  }
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "it is /mnt/ddprun_"));
}

TEST_CASE("error files go to a place with room, and where there is none the job runs") {
  const auto result =
      run({"unshare", "--map-root-user", "--mount", "sh", "-c",
           "mount -t tmpfs -o size=64k none /mnt && head -c 99999 /dev/zero >/mnt/full 2>/dev/null;"
           "unset TEMP TMP; export TMPDIR=/mnt; launch() { \"$0\" --standalone "
           "sh -c 'echo it is $TORCHELASTIC_ERROR_FILE'; }; launch && cd /mnt && "
           "echo first && TMPDIR=/dev/shm launch && "
           "for place in /tmp /var/tmp; do mount --rbind $place $place && "
           "mount -o remount,ro,bind $place || exit 77; done; launch",
           binary("ddprun")},
          20s);
  if (result.status == 77 || contains(result.output, "unshare failed")) {
    DDPRUN_SKIP("this user may not mount a file system");
  }
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "TMPDIR=/mnt (No space left on device): error files go to /tmp"));
  CHECK(contains(result.output, "it is /tmp/ddprun_"));
  CHECK(contains(result.output, "first\nit is /dev/shm/ddprun_"));  // Whatever the folder is.
  CHECK(contains(result.output, "it is /mnt/ddprun_"));
}

TEST_CASE("a program on a file system without execution is not said to lack a permission") {
  const auto result = run({"unshare", "--map-root-user", "--mount", "sh", "-c",
                           "mount -t tmpfs -o noexec none /mnt && cp /bin/true /mnt || exit 77; "
                           "exec \"$0\" --standalone /mnt/true",
                           binary("ddprun")},
                          20s);
  if (result.status == 77 || contains(result.output, "unshare failed")) {
    DDPRUN_SKIP("this user may not mount a file system");
  }
  INFO(result.output);
  CHECK(result.status == 2);
  CHECK(contains(result.output, "on a file system that is mounted noexec: copy it"));
}

TEST_CASE("a dry run says what would be started and starts nothing") {
  const TemporaryFolder folder;
  const auto result = run(launch({"--dry-run", "--standalone", "--nproc-per-node", "2"}) +
                              shell("touch " + (folder / "started")),
                          20s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "local rank 1: LOCAL_RANK=1 RANK=1"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a dry run has the names and values of the environment that workers get") {
  const std::vector<std::vector<std::string>> jobs = {
      {"--standalone"},
      {"--standalone", "--max-restarts", "1"},
      {"--restart-memory", "1M", "--omp-threads", "3", "--virtual-local-rank"},
      {"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-conf", "last_call_timeout=0",
       "--rdzv-endpoint", "127.0.0.1:" + std::to_string(free_port())}};
  for (const auto& options : jobs) {
    for (const char* own_store : {"0", "1"}) {
      const std::map<std::string, std::string> variables = {
          {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", own_store},
          {"CUDA_VISIBLE_DEVICES", "0,1"},
          {"DDPRUN_SPARE_FD", "4"}};
      const auto words = launch({"--nproc-per-node", "2", "--rdzv-id", "job"}) + options;
      const auto real =
          run(words + shell("test $RANK = 1 || env | sed 's/^/is /'"), 30s, variables);
      const auto plan = run(words + std::vector<std::string>{"--dry-run", "true"}, 30s, variables);
      INFO("plan:\n" << plan.output << "real:\n" << real.output);
      REQUIRE(real.status == 0);
      const Environment planned =
          environment_of(plan.output.substr(plan.output.find("Environment of every worker")), "  ");
      Environment given = environment_of(real.output, "is ");
      for (const auto& [name, value] : planned) {
        INFO(name);
        REQUIRE(given.contains(name));
        const bool known = value != "..." && value != "(below)" && !contains(value, "XXXXXX");
        if (known) CHECK(given[name] == value);
        given.erase(name);
      }
      // What the launcher has itself, and the shell's own.
      const Environment own = environment_of(run({"env"}, 30s, variables).output, "");
      for (const auto& [name, value] : given) {
        INFO(name);
        const bool of_shell = name == "PWD" || name == "OLDPWD" || name == "SHLVL" || name == "_";
        CHECK((of_shell || own.contains(name)));
      }
    }
  }
}

TEST_CASE("a forwarded signal reaches every worker and the job goes on") {
  const std::string script =
      "trap 'echo \"$RANK got it\"; told=1' USR1; echo \"up $RANK\"; "
      "while [ -z \"$told\" ]; do sleep 0.02; done; echo \"$RANK ends well\"";
  Process job(launch({"--standalone", "--nproc-per-node", "2", "--forward-signals", "USR1"}) +
              shell(script));
  REQUIRE(wait_for_both_up(job));
  job.send_signal(SIGUSR1);

  const auto result = job.wait(20s);
  INFO(result.output);
  CHECK(result.status == 0);
  for (const char* text : {"0 got it", "1 got it", "0 ends well", "1 ends well",
                           "got SIGUSR1: passed on to 2 workers"}) {
    CHECK(contains(result.output, text));
  }
}

TEST_CASE("a job whose workers fail at once, always alike, stops before its restarts are used up") {
  const auto result = run(launch({"--standalone", "--max-restarts", "50", "--max-same-failures",
                                  "3", "--restart-backoff", "0.01"}) +
                              shell("echo \"attempt $TORCHELASTIC_RESTART_COUNT\"; exit 9"),
                          20s);

  INFO(result.output);
  CHECK(result.status == 9);
  CHECK(contains(result.output, "attempt 2"));
  CHECK_FALSE(contains(result.output, "attempt 3"));
  CHECK(contains(result.output, "the same 3 times in a row"));
}

TEST_CASE("14.12: an attempt that got further than all before it is followed by the next at once") {
  // Which of the restarts has to wait: a row of failures is at its begin again after each attempt
  // that got further. To say again what was reached before is no progress.
  struct Row {
    std::vector<std::string> positions;
    std::vector<bool> waits;
  };
  const std::vector<Row> table = {
      {{"10", "20", "30", "40"}, {false, false, false, false}},
      {{"-", "-", "-"}, {false, true, true}},
      {{"10", "10", "9"}, {false, true, true}},
      {{"-", "-", "10", "-"}, {false, true, false, true}},
  };
  for (const Row& row : table) {
    const auto result = run(launch({"--standalone", "--max-restarts", "4", "--restart-backoff",
                                    "0.02", binary("dying_worker"), "after"}) +
                                row.positions,
                            30s);
    INFO(result.output);
    CHECK(result.status == 0);
    for (std::size_t i = 0; i < row.waits.size(); ++i) {
      INFO("restart " << i);
      const std::string left = " (" + std::to_string(3 - i) + " of 4 restarts left)";
      CHECK(contains(result.output, left));
      CHECK(contains(result.output, "restarting" + left) != row.waits[i]);
    }
  }
}

TEST_CASE("14.10: a worker that asks to be queued again is neither blamed nor started again") {
  const auto result =
      run(launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "2"}) +
              shell("echo up $RANK; if [ $RANK = 1 ]; then exit 75; fi; exec sleep 300"),
          30s);
  INFO(result.output);
  CHECK(result.status == 75);
  CHECK(contains(result.output, "rank 1 (pid "));
  CHECK(contains(result.output, "asks to be queued again (exit code 75)"));
  CHECK(count_of(result.output, "up 1") == 1);
  CHECK_FALSE(contains(result.output, "FAILED"));
}

TEST_CASE("a worker ended by a signal gives 128 plus the signal, by name") {
  const auto result =
      run(launch({"--standalone", "--nproc-per-node", "2"}) +
              shell(read_pid + "if [ $RANK = 0 ]; then kill -SEGV $pid; fi; exec sleep 300"),
          20s);

  INFO(result.output);
  CHECK(result.status == 128 + SIGSEGV);
  CHECK(contains(result.output, "SIGSEGV"));
}

TEST_CASE("a failed attempt is followed by the next while restarts are left") {
  const auto result = run(launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "3"}) +
                              shell("echo \"attempt $TORCHELASTIC_RESTART_COUNT rank $RANK\"; "
                                    "test $TORCHELASTIC_RESTART_COUNT = 2 || exit 5"),
                          30s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "attempt 2 rank 0"));
  CHECK(contains(result.output, "attempt 2 rank 1"));
  CHECK_FALSE(contains(result.output, "attempt 3"));
}

TEST_CASE("restarts run out and the job ends with the cause's code") {
  const auto result = run(launch({"--standalone", "--nproc-per-node", "1", "--max-restarts", "2"}) +
                              shell("echo \"attempt $TORCHELASTIC_RESTART_COUNT\"; exit 9"),
                          30s);

  INFO(result.output);
  CHECK(result.status == 9);
  CHECK(count_of(result.output, "attempt 2") >= 1);
  CHECK_FALSE(contains(result.output, "attempt 3\n"));
}

TEST_CASE("an option without effect is said to have none") {
  const auto result =
      run(launch({"--standalone", "--rdzv-conf", "read_timeout=5"}) + shell("exit 0"), 30s);

  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "read_timeout has no effect"));
}

TEST_CASE("a worker killed by SIGKILL is replaced") {
  Process job(launch({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1"}) +
              shell("test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; " + read_pid +
                    "echo \"up $RANK pid $pid\"; exec sleep 300"));
  REQUIRE(wait_for_both_up(job));
  const std::vector<int> workers = {number_after(job.output(), "up 0 pid "),
                                    number_after(job.output(), "up 1 pid ")};

  ::kill(workers[1], SIGKILL);

  const auto result = job.wait(20s);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(wait_until_gone(workers, 5s));
}

TEST_CASE("no process outlives a launcher killed by SIGKILL") {
  Process job(launch({"--standalone", "--nproc-per-node", "2"}) + waiting_workers);
  REQUIRE(wait_for_both_up(job));
  const std::vector<int> all = descendants_of(job.pid());
  REQUIRE(all.size() >= 2);

  job.send_signal(SIGKILL);

  CHECK(wait_until_gone(all, 10s));
}

TEST_CASE("what a worker has started ends with the worker") {
  const auto result = run(launch({"--standalone", "--nproc-per-node", "1"}) +
                              shell("sleep 300 & echo \"started $!\"; exit 4"),
                          20s);

  INFO(result.output);
  CHECK(result.status == 4);
  CHECK(wait_until_gone({number_after(result.output, "started ")}, 5s));
}

TEST_CASE("SIGTERM to the launcher stops the workers and is told to the caller") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  Process job(launch({"--standalone", "--nproc-per-node", "2"}) + waiting_workers);
  REQUIRE(wait_for_both_up(job));
  const std::vector<int> workers = descendants_of(job.pid());

  job.send_signal(SIGTERM);

  const auto result = job.wait(20s);
  INFO(result.output);
  CHECK(result.ended);
  CHECK(result.status != 0);
  CHECK(wait_until_gone(workers, 5s));
}

TEST_CASE("workers that somebody ends by SIGTERM have failed, also when none is left") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  const bool all = GENERATE(false, true);
  Process job(launch({"--standalone", "--nproc-per-node", "2"}) +
              std::vector<std::string>{"sleep", "300"});
  std::vector<int> workers;
  REQUIRE(job.wait_until([&] {
    workers = descendants_running(job.pid(), "sleep");
    return workers.size() == 2;
  }));

  ::kill(workers[0], SIGTERM);
  if (all) ::kill(workers[1], SIGTERM);
  const auto result = job.wait(60s);

  INFO(result.output);
  CHECK(result.status == 128 + SIGTERM);
  CHECK(contains(result.output, "FAILED"));
  if (!all) CHECK(contains(result.output, "pid " + std::to_string(workers[0]) + " on "));
}

TEST_CASE("SIGTERM again and again does not change the status that the first one asked for") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  // The last of them come while the launcher is on its way out.
  for (int time = 0; time < 10; ++time) {
    Process job(launch({"--standalone", "--nproc-per-node", "1"}) +
                shell("echo up; exec sleep 300"));
    REQUIRE(job.wait_for_output("up", 20s));
    ProcessResult result;
    const auto limit = std::chrono::steady_clock::now() + patience(20s);
    while (!result.ended && std::chrono::steady_clock::now() < limit) {
      job.send_signal(SIGTERM);
      result = job.wait(0ms);
    }
    INFO(result.output);
    CHECK(result.status == 75);
  }
}

TEST_CASE("a program that does not exist is named and nothing is started") {
  const auto result =
      run(launch({"--standalone", "--nproc-per-node", "2", "no-such-program-here"}), 20s);

  INFO(result.output);
  CHECK(result.ended);
  CHECK(result.status != 0);
  CHECK(contains(result.output, "no-such-program-here"));
}

TEST_CASE("a file that may not be executed is named") {
  TemporaryFolder folder;
  const std::string path = folder / "notes.txt";
  REQUIRE(run(shell("echo hello > " + path), 10s).status == 0);

  const auto result = run(launch({"--standalone", "--nproc-per-node", "1", path}), 20s);

  INFO(result.output);
  CHECK(result.ended);
  CHECK(result.status != 0);
  CHECK(contains(result.output, path));
}

TEST_CASE("bad usage ends with status 2 and names the option") {
  const auto unknown = run(launch({"--no-such-option", "true"}), 10s);
  const auto bad_value = run(launch({"--nproc-per-node", "many", "true"}), 10s);

  INFO(unknown.output << bad_value.output);
  CHECK(unknown.status == 2);
  CHECK(contains(unknown.output, "no-such-option"));
  CHECK(bad_value.status == 2);
  CHECK(contains(bad_value.output, "many"));
}

TEST_CASE("lines of many workers arrive whole") {
  // Each line is one letter 1,500 times: more than one pipe write, less than one console line.
  const auto result = run(launch({"--standalone", "--nproc-per-node", "4"}) +
                              shell("line=$(printf \"%1500s\" | tr ' ' $RANK); "
                                    "for i in $(seq 200); do echo $line; done"),
                          60s);

  CHECK(result.status == 0);
  for (const char* digit : {"0", "1", "2", "3"}) {
    std::string line;
    for (int i = 0; i < 1500; ++i) line += digit;
    CHECK(count_of(result.output, line + "\n") == 200);
  }
}
