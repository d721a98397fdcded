// What workers write, through the real ddprun: files, console, terminals, temporary folders.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"
#include "tests/testing/held_signals.h"
#include "tests/testing/patience.h"
#include "tests/testing/text.h"

using namespace ddprun::testing;
namespace fs = std::filesystem;

namespace {

// The one directory of an attempt of the one run that logged into this folder.
fs::path attempt_dir(const std::string& log_dir, int attempt = 0) {
  for (const auto& run : fs::directory_iterator(log_dir)) {
    return run.path() / ("attempt_" + std::to_string(attempt));
  }
  return {};
}

bool wait_for_file(const std::string& path, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + ddprun::testing::patience(limit);
  while (!fs::exists(path)) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

}  // namespace

TEST_CASE("a disk that is full for a while costs a log what was said then, and no more") {
  const TemporaryFolder folder;
  const std::string disk = folder / "disk", errors = folder / "errors", out = folder / "out";
  std::filesystem::create_directory(disk);
  const std::vector<std::string> mounted = {
      "unshare",
      "-m",
      "sh",
      "-c",
      "mount -t tmpfs -o size=64k tmpfs " + disk + " && { \"$@\" 2>" + errors +
          "; status=$?; cat " + disk + "/*/attempt_0/0/stdout.log >" + out + "; exit $status; }",
      "sh"};
  if (run({"unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", disk}, 20s).status != 0) {
    DDPRUN_SKIP("this user may not mount a file system (unshare -m)");
  }
  const auto result = run(mounted + launch({"--standalone", "--tee", "1", "--log-dir", disk}) +
                              shell("echo before; until grep -q before " + disk +
                                    "/*/attempt_0/0/stdout.log; do sleep 0.01; done; "
                                    "head -c 200000 /dev/zero >" +
                                    disk +
                                    "/filler 2>/dev/null; "
                                    "head -c 20000 /dev/zero | tr '\\0' x; echo; "
                                    "until grep -q 'cannot write the log file' " +
                                    errors +
                                    "; do sleep 0.01; done; "
                                    "rm " +
                                    disk + "/filler; echo after"),
                          60s);
  INFO(result.output.substr(0, 200));
  CHECK(result.status == 0);
  const std::string log = content_of(out);
  CHECK(log.starts_with("before\n"));
  CHECK(contains(log, " bytes of output are missing here: No space left on device\n"));
  CHECK(log.ends_with("after\n"));
  CHECK(contains(content_of(errors), "what it says is missing there until it can"));
}

TEST_CASE("lines with a text of the filter also go to one file of the attempt") {
  const TemporaryFolder folder;
  const auto result = run(
      launch({"--standalone", "--nproc-per-node", "2", "--tee", "3", "--log-dir", folder / "logs",
              "--duplicate-stdout-filters", "apple,1,,5", "--duplicate-stderr-filters=pear"}) +
          shell("echo apple $RANK; echo nothing; echo 'a 1,5'; echo 1 5; "
                "echo a pear >&2; echo apple >&2"),
      20s);

  INFO(result.output);
  CHECK(result.status == 0);
  const std::string out = content_of(attempt_dir(folder / "logs") / "filtered_stdout.log");
  INFO(out);
  CHECK(count_of(out, "\n") == 4);
  for (const char* line : {"[default0]:apple 0\n", "[default0]:a 1,5\n", "[default1]:apple 1\n",
                           "[default1]:a 1,5\n"}) {
    CHECK(count_of(out, line) == 1);
  }
  const std::string err = content_of(attempt_dir(folder / "logs") / "filtered_stderr.log");
  CHECK(count_of(err, "\n") == 2);
  CHECK(contains(err, "[default1]:a pear\n"));
}

TEST_CASE("a log folder that cannot be made is a wrong option, said before anything starts") {
  const auto result = run(
      launch({"--standalone", "--log-dir", "/proc/none"}) + std::vector<std::string>{"true"}, 30s);
  INFO(result.output);
  CHECK(result.status == 2);
  CHECK(contains(result.output, "--log-dir=/proc/none: cannot make that folder"));
}

TEST_CASE("files that no folder was named for are told of") {
  const TemporaryFolder temporary;
  const auto result = run(launch({"--standalone", "--redirects", "3"}) + shell("echo it is here"),
                          20s, {{"TMPDIR", temporary.path()}});
  INFO(result.output);
  CHECK(result.status == 0);
  const std::string told = "files of the workers' output stay in ";
  const std::size_t at = result.output.find(told);
  REQUIRE(at != std::string::npos);
  const std::string folder = result.output.substr(
      at + told.size(), result.output.find(' ', at + told.size()) - at - told.size());
  CHECK(content_of(folder + "/attempt_0/0/stdout.log") == "it is here\n");
}

TEST_CASE("redirected and tee'd files are cut by size and lose nothing") {
  const TemporaryFolder folder;
  for (const char* how : {"--redirects", "--tee"}) {
    const auto result =
        run(launch({"--standalone", how, "1", "--log-dir", folder / how, "--log-rotate", "8k"}) +
                shell("seq 10000"),
            20s);
    CHECK(result.status == 0);
    const fs::path log = attempt_dir(folder / how) / "0" / "stdout.log";
    std::string text;
    int files = 0;
    for (; fs::exists(log.string() + "." + std::to_string(files + 1)); ++files) {
      const std::string part = content_of(log.string() + "." + std::to_string(files + 1));
      CHECK(part.size() <= 8192 + 6);  // A line that was begun is completed.
      CHECK(part.back() == '\n');
      text += part;
    }
    CHECK(files == 5);
    CHECK(text + content_of(log) == run({"seq", "10000"}, 10s).output);
  }
}

TEST_CASE("a pipe gets colors only when they are asked for") {
  const auto job = [](const std::string& when) {
    return run(launch({"--standalone", "--nproc-per-node", "2", "--tee", "1", "--color", when}) +
                   shell("echo x"),
               20s, {{"TERM", "xterm"}})
        .output;
  };

  CHECK_FALSE(contains(job("auto"), "\033["));
  const std::string always = job("always");
  INFO(always);
  CHECK(contains(always, "m[default1]:\033[39mx\n"));
}

TEST_CASE("equal lines of all workers are shown once when that is asked for") {
  const auto result = run(launch({"--standalone", "--nproc-per-node", "3", "--collapse-output"}) +
                              shell("echo same; test $RANK = 1 && echo alone; echo end"),
                          20s);

  INFO(result.output);
  // The workers may start more than a window apart: then a line has fewer ranks.
  CHECK(contains(result.output, "[default1]:alone\n"));
  CHECK(contains(result.output, "]:same\n"));
  CHECK_FALSE(contains(result.output, "\nsame"));
}

TEST_CASE("with --pty a worker sees terminals, and its files hold its bytes") {
  const TemporaryFolder folder;
  const auto result =
      run(launch({"--standalone", "--nproc-per-node", "2", "--pty", "--tee", "3", "--log-dir",
                  folder / "logs"}) +
              shell("test -t 1 && test -t 2 && echo yes; stty size <&1; seq 2000; "
                    "(: </dev/tty) 2>/dev/null || echo no tty; printf 'end\\377' >&2"),
          20s);

  INFO(result.output);
  CHECK(result.status == 0);
  const std::string expected =
      "yes\n24 69\n" + run({"seq", "2000"}, 10s).output + "no tty\n";  // 80 less the prefix.
  for (const char* rank : {"0", "1"}) {
    CHECK(content_of(attempt_dir(folder / "logs") / rank / "stdout.log") == expected);
    CHECK(content_of(attempt_dir(folder / "logs") / rank / "stderr.log") == "end\xff");
  }
}

TEST_CASE("what a worker with a terminal has started ends with it and with the launcher") {
  const auto started = shell("sleep 300 & echo \"started $!\"; test $RANK = 1 && exit 4; wait");
  const auto result =
      run(launch({"--standalone", "--nproc-per-node", "2", "--pty"}) + started, 20s);
  INFO(result.output);
  CHECK(result.status == 4);
  CHECK(wait_until_gone({number_after(result.output, "started ")}, 5s));

  Process job(launch({"--standalone", "--pty"}) + shell("echo up; exec sleep 300"));
  REQUIRE(job.wait_for_output("up", 20s));
  const std::vector<int> all = descendants_of(job.pid());
  job.send_signal(SIGKILL);
  CHECK(wait_until_gone(all, 10s));
}

TEST_CASE("each attempt has its own logs, and none is lost") {
  const TemporaryFolder folder;
  const auto result = run(launch({"--standalone", "--max-restarts", "2", "--redirects", "3",
                                  "--log-dir", folder / "logs"}) +
                              shell("echo attempt $TORCHELASTIC_RESTART_COUNT; "
                                    "test $TORCHELASTIC_RESTART_COUNT = 2"),
                          20s);

  CHECK(result.status == 0);
  for (int attempt = 0; attempt < 3; ++attempt) {
    CHECK(content_of(attempt_dir(folder / "logs", attempt) / "0/stdout.log") ==
          "attempt " + std::to_string(attempt) + "\n");
  }
}

TEST_CASE("a change of the membership begins a log directory of its own") {
  const TemporaryFolder folder;
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto node = [&](const std::string& name) {
    return launch({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint,
                   "--rdzv-conf", "last_call_timeout=0", "--redirects", "1", "--log-dir",
                   folder / name}) +
           shell("echo world of $WORLD_SIZE; echo up >&2; test $WORLD_SIZE = 2 || exec sleep 300");
  };
  Process first(node("first"));
  REQUIRE(first.wait_for_output("up", 20s));
  Process second(node("second"));

  CHECK(second.wait(30s).status == 0);
  CHECK(first.wait(30s).status == 0);
  CHECK(content_of(attempt_dir(folder / "first", 0) / "0/stdout.log") == "world of 1\n");
  CHECK(content_of(attempt_dir(folder / "first", 1) / "0/stdout.log") == "world of 2\n");
  CHECK(content_of(attempt_dir(folder / "second", 1) / "0/stdout.log") == "world of 2\n");
}

TEST_CASE("no temporary folder outlives a run, also one killed by SIGKILL") {
  const TemporaryFolder folder;
  const std::map<std::string, std::string> variables = {{"TMPDIR", folder.path()}};
  CHECK(run(launch({"--standalone"}) + shell("exit 0"), 20s, variables).status == 0);
  CHECK(fs::is_empty(folder.path()));

  Process job(launch({"--standalone"}) + shell("echo up; exec sleep 300"), variables);
  REQUIRE(job.wait_for_output("up", 20s));
  CHECK_FALSE(fs::is_empty(folder.path()));
  const std::vector<int> all = descendants_of(job.pid());
  job.send_signal(SIGKILL);

  CHECK(wait_until_gone(all, 10s));  // The guard process is one of them.
  CHECK(fs::is_empty(folder.path()));
}

// Rank 0 writes 200 MB to a console that nobody reads for now, rank 1 dies: rank 0 is told while
// its output is stuck. Then the console is read, and everything is there.
TEST_CASE("a chatty worker and a stuck console do not hide another worker's death") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  const TemporaryFolder folder;
  const std::string told = folder / "told", go = folder / "go", program = folder / "worker.py";
  std::ofstream(program) << R"(
import os, signal, sys, time
told, go = sys.argv[1:]
if os.environ["RANK"] == "1":
    while not os.path.exists(go):
        time.sleep(0.001)
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: open(told, "w").close())
block = b"".join(b"%06d " % n + b"x" * 92 + b"\n" for n in range(10000))
for _ in range(200):
    data = memoryview(block)
    while data:
        data = data[os.write(1, data):]
)";
  int console[2];
  REQUIRE(::pipe2(console, O_CLOEXEC) == 0);
  const auto argv = launch({"--standalone", "--nproc-per-node", "2", "--tee", "1", "--quiet",
                            "--log-dir", folder / "logs", program, told, go});
  // Through a shell, which gives it the console as stdout; the rest of the output is the report.
  std::string command = "exec";
  for (const std::string& word : argv) command += " '" + word + "'";
  ::fcntl(console[1], F_SETFD, 0);
  Process job(shell(command + " >&" + std::to_string(console[1])));
  ::close(console[1]);

  char buffer[65536];
  std::string received(1, '\0');
  REQUIRE(::read(console[0], received.data(), 1) == 1);  // It has begun.
  std::ofstream(go).close();
  CHECK(wait_for_file(told, 20s));  // By SIGTERM, with the console full.

  std::thread reader([&] {
    for (ssize_t n; (n = ::read(console[0], buffer, sizeof buffer)) > 0;) {
      received.append(buffer, static_cast<std::size_t>(n));
    }
  });
  const auto result = job.wait(50s);
  reader.join();
  ::close(console[0]);
  INFO(result.output);
  CHECK(result.status == 7);
  std::string sent, shown;
  for (int line = 0; line < 10'000; ++line) {
    std::string number = std::to_string(line);
    number.insert(0, 6 - number.size(), '0');
    sent += number + " " + std::string(92, 'x') + "\n";
    shown += "[default0]:" + number + " " + std::string(92, 'x') + "\n";
  }
  const std::string file = content_of(attempt_dir(folder / "logs") / "0/stdout.log");
  REQUIRE(file.size() == 200 * sent.size());
  REQUIRE(received.size() == 200 * shown.size());
  bool same = true;
  for (std::size_t block = 0; block < 200; ++block) {
    same = same && file.compare(block * sent.size(), sent.size(), sent) == 0 &&
           received.compare(block * shown.size(), shown.size(), shown) == 0;
  }
  CHECK(same);
}

TEST_CASE("SIGUSR1 asks where the job stands, and the job goes on") {
  Process job(launch({"--standalone", "--nproc-per-node", "2", "--quiet"}) +
              shell("echo up; read line < /proc/self/stat; exec sleep 300"));
  REQUIRE(job.wait_for_output("up\nup", 20s));
  job.send_signal(SIGUSR1);
  CHECK(job.wait_for_output("ranks 0 to 1 of 2; 2 of 2 workers running here: pid ", 20s));
  job.send_signal(SIGTERM);
  CHECK(job.wait(20s).status == 75);
}

TEST_CASE("SIGUSR1 that is passed on is the workers' alone") {
  Process job(launch({"--standalone", "--forward-signals", "USR1"}) +
              shell("trap 'echo got it; exit 7' USR1; echo up; while :; do sleep 0.1; done"));
  REQUIRE(job.wait_for_output("up", 20s));
  job.send_signal(SIGUSR1);
  const auto result = job.wait(20s);
  CHECK(result.status == 7);
  CHECK(contains(result.output, "got it"));
  CHECK_FALSE(contains(result.output, "running here"));
}

namespace {

// A job whose stdout is a pipe that the test reads when it likes; stderr is the rest of its output.
struct PipedJob {
  explicit PipedJob(const std::vector<std::string>& argv) : job(behind_shell(argv)) {
    ::close(ends[1]);
  }
  ~PipedJob() { ::close(ends[0]); }

  std::vector<std::string> behind_shell(const std::vector<std::string>& argv) {
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    ::fcntl(ends[1], F_SETFD, 0);
    std::string command = "exec";
    for (const std::string& word : argv) command += " '" + word + "'";
    return shell(command + " >&" + std::to_string(ends[1]));
  }
  std::string read_all() const {
    std::string text;
    char buffer[65536];
    for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<std::size_t>(n));
    }
    return text;
  }

  int ends[2] = {-1, -1};
  Process job;
};

const std::string waits = "bytes of its output wait for whoever reads stdout";

}  // namespace

TEST_CASE("whoever begins to read long after the job's end gets all of it") {
  // One worker counts: the first of two that fails would stop the other in the middle of its
  // numbers.
  PipedJob piped(launch({"--standalone", "--nproc-per-node", "2"}) +
                 shell("[ $RANK = 0 ] || exec sleep 1000; seq 30000; exit 4"));
  REQUIRE(piped.job.wait_for_output(waits, 30s));
  REQUIRE(contains(piped.job.output(), "exit status 4"));

  const std::string text = piped.read_all();
  CHECK(piped.job.wait(20s).status == 4);
  CHECK(text.size() == run({"seq", "30000"}, 10s).output.size());
}

TEST_CASE("a reader that goes away at the end does not hold the launcher") {
  PipedJob piped(launch({"--standalone", "--nproc-per-node", "2"}) + shell("seq 30000"));
  REQUIRE(piped.job.wait_for_output(waits, 30s));
  ::close(std::exchange(piped.ends[0], -1));
  CHECK(piped.job.wait(20s).status == 0);
}

TEST_CASE("SIGTERM bounds the wait for a reader, and the logs of what was dropped are named") {
  const TemporaryFolder folder;
  PipedJob piped(launch({"--standalone", "--nproc-per-node", "2", "--tee", "1", "--log-dir",
                         folder / "logs"}) +
                 shell("seq 30000"));
  REQUIRE(piped.job.wait_for_output(waits, 30s));
  piped.job.send_signal(SIGTERM);
  const auto result = piped.job.wait(20s);
  INFO(result.output);
  CHECK(result.status == 0);  // The job's: it had succeeded.
  CHECK(contains(result.output, "[ddprun] dropped "));
  CHECK(
      contains(result.output, "the workers' part is in " + attempt_dir(folder / "logs").string()));
}

namespace {

// A file system of its own in a folder, which can be frozen as one whose server is away.
class FrozenFolder {
 public:
  explicit FrozenFolder(const TemporaryFolder& place)
      : image_(place / "image"), folder_(place / "mounted") {
    if (::geteuid() != 0) {
      problem_ = "to mount a file system one must be root";
      return;
    }
    fs::create_directory(folder_);
    std::ofstream(image_).close();
    fs::resize_file(image_, 16 << 20);
    for (const auto& command : {std::vector<std::string>{"mkfs.ext4", "-q", image_},
                                {"mount", "-o", "loop", image_, folder_}}) {
      const auto result = run(shell("exec \"$0\" \"$@\" 2>&1") + command, 30s);
      if (result.status != 0) {
        problem_ = command[0] + " does not work here: " + result.output;
        return;
      }
    }
    mounted_ = true;
    freeze();
    thaw();
  }
  ~FrozenFolder() {
    thaw();
    // A process that has just ended may still hold it.
    if (mounted_) run({"umount", "--lazy", folder_}, 30s);
  }
  FrozenFolder(const FrozenFolder&) = delete;

  const std::string& problem() const { return problem_; }
  std::string operator/(const std::string& name) const { return folder_ + "/" + name; }

  void freeze() {
    const auto result = run({"fsfreeze", "--freeze", folder_}, 30s);
    frozen_ = result.status == 0;
    if (!frozen_) problem_ = "fsfreeze does not work here: " + result.output;
  }
  void thaw() {
    if (std::exchange(frozen_, false)) run({"fsfreeze", "--unfreeze", folder_}, 30s);
  }

 private:
  std::string image_, folder_, problem_;
  bool mounted_ = false, frozen_ = false;
};

}  // namespace

// As a file server that is away for longer than a node may be silent: the worker idles for four
// times as long, since that nothing happens shows only when the time for it is over.
TEST_CASE("a node whose stdout and files are on a frozen file system goes on") {
  const TemporaryFolder folder;
  FrozenFolder disk(folder);
  if (!disk.problem().empty()) DDPRUN_SKIP(disk.problem());
  const std::string go = folder / "go", lived = folder / "lived", end = folder / "end";
  const std::uint16_t port = free_port();
  const auto node = [&](int rank, const std::vector<std::string>& options) {
    return launch_node(
        rank, port,
        std::vector<std::string>{"--nproc-per-node", "1", "--rdzv-conf",
                                 "keep_alive_interval=0.2,heartbeat_timeout=1"} +
            options,
        shell("echo up >&2; while ! [ -e '" + go +
              "' ]; do sleep 0.01; done; if [ $RANK = 1 ]; then seq 5000; seq 5000 "
              ">&2; sleep 4; : > '" +
              lived + "'; fi; while ! [ -e '" + end + "' ]; do sleep 0.01; done; echo end >&2"));
  };
  Process first(node(0, {}));
  std::string command = "exec";
  for (const std::string& word :
       node(1, {"--tee", "3", "--log-dir", disk / "logs", "--event-log", disk / "events"})) {
    command += " '" + word + "'";
  }
  Process second(shell(command + " > '" + disk / "out" + "' 2>&1"));
  REQUIRE(first.wait_for_output("up", 30s));
  REQUIRE(first.wait_until([&] { return contains(content_of(disk / "out"), "up\n"); }));

  disk.freeze();
  std::ofstream(go).close();
  CHECK(first.wait_until([&] { return fs::exists(lived); }));
  disk.thaw();
  std::ofstream(end).close();

  const auto result = first.wait(30s);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(second.wait(30s).status == 0);
  const std::string numbers = run({"seq", "5000"}, 10s).output;
  const std::string out = content_of(disk / "out");
  INFO(out.substr(0, 2000));
  CHECK(count_of(out, "\n5000\n") + count_of(out, "[default0]:5000\n") == 2);
  CHECK(content_of(attempt_dir(disk / "logs") / "0/stdout.log") == numbers);
  CHECK(content_of(attempt_dir(disk / "logs") / "0/stderr.log") == "up\n" + numbers + "end\n");
  CHECK(contains(content_of(disk / "events"), "\"job_ended\""));
}

TEST_CASE("SIGTERM bounds the wait for a file that takes nothing, and the launcher ends") {
  const TemporaryFolder folder;
  const std::string events = folder / "events";
  REQUIRE(::mkfifo(events.c_str(), 0600) == 0);
  const int reader = ::open(events.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  REQUIRE(::fcntl(reader, F_SETPIPE_SZ, 4096) == 4096);
  PipedJob piped(launch({"--standalone", "--nproc-per-node", "16", "--event-log", events}) +
                 shell("exit 0"));
  REQUIRE(piped.job.wait_for_output("wait for a file system that takes nothing", 30s));
  piped.job.send_signal(SIGTERM);
  const auto result = piped.job.wait(20s);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "bytes of output that no file system took within 2 s"));
  ::close(reader);
}

TEST_CASE("output that a console refuses to the end is told of on the other one") {
  if (::access("/dev/full", W_OK) != 0) DDPRUN_SKIP("there is no /dev/full");
  std::string command = "exec";
  for (const std::string& word :
       launch({"--standalone", "--nproc-per-node", "2"}) + shell("echo x")) {
    command += " '" + word + "'";
  }
  const auto result = run(shell(command + " > /dev/full"), 20s);
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, " bytes of output are missing on stdout: No space left on device"));
}
