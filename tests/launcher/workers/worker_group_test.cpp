// Workers as one unit: real processes, mostly shells.
#include "launcher/workers/worker_group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/steady_timer.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "launcher/processes/child_process.h"
#include "launcher/processes/child_sessions.h"
#include "launcher/processes/worker_members.h"
#include "tests/testing/catch.h"
#include "tests/testing/debugger.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/heard_log.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::testing::Debugger;

namespace {

// A group with its event loop and console, and what its callbacks were told.
struct Job {
  Job() : Job(WorkerGroupLimits{}) {}
  explicit Job(const WorkerGroupLimits& limits)
      : console(make_console()),
        output(std::make_unique<OutputForwarder>(io, console, console)),
        group(std::make_unique<WorkerGroup>(io, *output,
                                            WorkerGroupCallbacks{[this](const WorkerEnd& exit) {
                                                                   exits.push_back(exit);
                                                                   if (on_exit) on_exit(exit);
                                                                 },
                                                                 [this] {
                                                                   reaped = true;
                                                                   if (on_all_reaped)
                                                                     on_all_reaped();
                                                                 }},
                                            limits)) {}
  ~Job() {
    group.reset();
    output.reset();
    ::close(console);
  }

  static int make_console() {
    char name[] = "/tmp/ddprun_console_XXXXXX";
    const int fd = ::mkstemp(name);
    ::unlink(name);
    return fd;
  }

  // Runs the loop until `done`; false after `limit`.
  template <typename Done>
  bool run_until(Done done, std::chrono::milliseconds limit = 20s) {
    const auto end = std::chrono::steady_clock::now() + ddprun::testing::patience(limit);
    while (!done() && std::chrono::steady_clock::now() < end) {
      io.restart();
      if (io.run_one_for(50ms) == 0 && io.stopped()) ::poll(nullptr, 0, 1);
    }
    return done();
  }
  bool run_until_reaped() {
    return run_until([this] { return reaped; });
  }

  std::string console_text() {
    // A thread writes it. Not read(), which would move the offset that it writes at.
    REQUIRE(output->flush(ddprun::testing::patience(20s)));
    std::string text;
    char buffer[65536];
    for (ssize_t n;
         (n = ::pread(console, buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    return text;
  }
  // Lets the loop run until the console shows `text`.
  bool wait_for(const std::string& text) {
    return run_until([&] { return console_text().find(text) != std::string::npos; });
  }

  asio::io_context io;
  int console;
  std::unique_ptr<OutputForwarder> output;
  std::vector<WorkerEnd> exits;
  bool reaped = false;
  std::function<void(const WorkerEnd&)> on_exit;
  std::function<void()> on_all_reaped;
  std::unique_ptr<WorkerGroup> group;
};

WorkerSpec shell(int rank, const std::string& script) {
  WorkerSpec spec;
  spec.local_rank = rank;
  spec.rank = rank;
  spec.argv = {"sh", "-c", script};
  // Not inherited: a prefix makes the output pass through us.
  spec.output.prefix = "[" + std::to_string(rank) + "]:";
  return spec;
}

// As when the last descriptor is gone. Those for a child have numbers above its own, and are made.
bool without_duplicates(const std::function<void()>& body) {
  constexpr int at_least = 2;  // fcntl's argument of this index; 0: any number.
  return ddprun::testing::with_failing_calls({{__NR_fcntl, at_least, 0}}, EMFILE, body);
}

// The same with a channel, at descriptor 4.
WorkerSpec parker(int rank, const std::string& script) {
  WorkerSpec spec = shell(rank, script);
  spec.keeps_channel = true;
  return spec;
}

const std::string park_at_once = "printf k >&4; echo ready; head -c 1 <&4 >/dev/null; echo >&4";

// The number after `key` on the console, as printed by "echo key $!".
int number_after(const std::string& text, const std::string& key) {
  const std::size_t found = text.find(key + " ");
  return found == std::string::npos ? 0 : std::atoi(text.c_str() + found + key.size() + 1);
}

// Of a parent that has ended, so that this process, as a container's first one, has it as a child.
// Call it when a group has started.
int foreign_orphan() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return -1;
  const pid_t parent = ::fork();
  if (parent == 0) {
    if (::fork() != 0) ::_exit(0);
    const pid_t self = ::setsid();
    [[maybe_unused]] const auto told = ::write(ends[1], &self, sizeof self);
    for (;;) ::pause();
  }
  ::waitpid(parent, nullptr, 0);
  pid_t orphan = -1;
  const bool heard = ::read(ends[0], &orphan, sizeof orphan) == sizeof orphan;
  for (const int end : ends) ::close(end);
  return heard ? orphan : -1;
}

bool is_alive(int pid) {
  const ProcessRow row = read_process(pid);
  return row.pid != 0 && row.state != 'Z' && row.state != 'X';
}

// Waits on the kernel, not on a clock.
bool ends_within(int pidfd, int limit_ms) {
  pollfd ended{pidfd, POLLIN, 0};
  return ::poll(&ended, 1, limit_ms) == 1;
}

int open_pidfd(int pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// A worker whose memory the kernel takes some 50 ms to free. `before`: what it does first, in
// Python.
WorkerSpec with_much_memory(int rank, const std::string& before = "") {
  WorkerSpec spec = shell(rank, "");
  spec.argv = {"python3", "-c",
               before +
                   "\nimport mmap, time\nsize = 512 << 20\nmemory = mmap.mmap(-1, size)\n"
                   "memory.madvise(15)  # MADV_NOHUGEPAGE: huge pages are given back at once.\n"
                   "memory[::4096] = b'x' * (size // 4096)\n"
                   "print('full', flush=True)\ntime.sleep(300)"};
  return spec;
}

// Kills it, and tells the group of it as soon as the kernel has begun to take it apart.
void kill_and_tell(WorkerGroup& group, int pid) {
  ::kill(pid, SIGKILL);
  while (!is_exiting(pid)) ::sched_yield();
  group.on_ending()(pid);
}

}  // namespace

TEST_CASE("a group reports every worker's exit code and then that all are reaped", "[group]") {
  Job job;
  job.group->start({shell(0, "exit 0"), shell(1, "exit 7"), shell(2, "kill -SEGV $$")});

  REQUIRE(job.run_until_reaped());

  REQUIRE(job.exits.size() == 3);
  for (const WorkerEnd& exit : job.exits) {
    CHECK(exit.exit_code == (exit.rank == 1 ? 7 : 0));
    CHECK(exit.signal == (exit.rank == 2 ? SIGSEGV : 0));
    CHECK_FALSE(exit.stopped_by_us);
    CHECK(exit.success() == (exit.rank == 0));
  }
  CHECK(job.group->running() == 0);
}

TEST_CASE("a worker has the agent's environment with its own variables on top", "[group]") {
  ::setenv("DDPRUN_TEST_INHERITED", "old", 1);
  ::setenv("DDPRUN_TEST_REPLACED", "old", 1);
  Job job;
  WorkerSpec spec = shell(0, "echo $DDPRUN_TEST_INHERITED $DDPRUN_TEST_REPLACED");
  spec.variables = {{"DDPRUN_TEST_REPLACED", "new"}};
  job.group->start({spec});

  REQUIRE(job.run_until_reaped());

  CHECK(job.console_text() == "[0]:old new\n");
}

TEST_CASE("all output is on the console before the group says that all are reaped", "[group]") {
  Job job;
  std::string seen;
  job.on_all_reaped = [&] { seen = job.console_text(); };
  job.group->start({shell(0, "seq 20000")});

  REQUIRE(job.run_until_reaped());

  CHECK(std::count(seen.begin(), seen.end(), '\n') == 20000);
}

TEST_CASE("the last lines of stderr come with the exit", "[group]") {
  Job job;
  job.group->start({shell(0, "seq 100 >&2; echo 'the cause' >&2; exit 3")});

  REQUIRE(job.run_until_reaped());

  const std::string tail = job.exits.at(0).last_stderr;
  CHECK(std::count(tail.begin(), tail.end(), '\n') == 19);
  CHECK(tail.substr(tail.rfind('\n') + 1) == "the cause");
}

TEST_CASE("stderr that is only redirected to a file still gives the last lines", "[group]") {
  const std::string folder = "/tmp/ddprun_group_" + std::to_string(::getpid());
  Job job;
  WorkerSpec spec = shell(0, "printf 'no newline' >&2; exit 3");
  spec.output.err = {false, folder + "/a/stderr.log"};
  spec.output.out = {false, folder + "/a/stdout.log"};
  job.group->start({spec});

  REQUIRE(job.run_until_reaped());

  CHECK(job.exits.at(0).last_stderr == "no newline");
  CHECK(job.output->flush(ddprun::testing::patience(20s)));
  std::ifstream file(folder + "/a/stderr.log");
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == "no newline");
  CHECK(job.console_text().empty());
  std::filesystem::remove_all(folder);
}

TEST_CASE("a missing program is a start error that names it, and nothing is left", "[group]") {
  Job job;
  WorkerSpec missing = shell(1, "");
  missing.argv = {"/no/such/program"};
  std::string message;
  int error_number = 0;
  try {
    job.group->start({shell(0, "exec sleep 1000"), missing});
  } catch (const StartError& error) {
    message = error.what();
    error_number = error.error_number();
  }

  CHECK(error_number == ENOENT);
  CHECK(message.find("/no/such/program") != std::string::npos);
  CHECK(message.find("No such file") != std::string::npos);
  CHECK(job.group->running() == 0);
  CHECK(read_own_children().size() == 1);  // The guard.
}

TEST_CASE("no descriptor for a worker's end is a start error, and nothing is left", "[group]") {
  const bool tried = without_duplicates([] {
    Job job;
    std::string message;
    int error_number = 0;
    try {
      job.group->start({shell(0, "exec sleep 1000")});
    } catch (const StartError& error) {
      message = error.what();
      error_number = error.error_number();
    }

    CHECK(error_number == EMFILE);
    CHECK(message.find("cannot start worker 0: cannot duplicate descriptor") == 0);
    CHECK(job.group->running() == 0);
    CHECK(read_own_children().size() == 1);  // The guard.
  });
  if (!tried) DDPRUN_SKIP("this kernel has no seccomp");
}

TEST_CASE("a worker is asked to end also where /proc is not mounted", "[group]") {
  int error_number = 0;
  auto worker = ChildProcess::spawn({.argv = {"/bin/sleep", "1000"}}, error_number);
  REQUIRE(worker);

  const bool tried = ddprun::testing::with_failing_calls(
      {{__NR_openat}}, ENOENT, [&] { WorkerMembers().ask({worker->pid()}, SIGTERM, {}); });
  worker->send_to_group(SIGKILL);  // Who has got the other signal dies of that one.
  pollfd ended{worker->pidfd(), POLLIN, 0};
  ::poll(&ended, 1, -1);
  const auto status = worker->reap();

  if (!tried) DDPRUN_SKIP("this kernel has no seccomp");
  REQUIRE(status);
  CHECK(status->signal == SIGTERM);
}

TEST_CASE("no descriptor for a spare's end costs the spare, and not the job", "[group]") {
  const bool tried = without_duplicates([] {
    const ddprun::testing::HeardLog heard;
    Job job;
    bool given_up = false;
    job.group->keep_spares(1, 0, {.on_given_up = [&] { given_up = true; }},
                           {.settle = 0ms, .pause = 1ms});
    WorkerSpec spare = shell(0, "exec sleep 1000");
    spare.is_spare = true;
    job.group->stand_by({spare});

    CHECK(job.run_until([&] { return given_up; }));
    INFO(heard.text());
    CHECK(heard.text().find("Too many open files") != std::string::npos);
    // The guard alone, and not before its turn: the job does not wait for it.
    CHECK(job.run_until([] { return read_own_children().size() == 1; }));
  });
  if (!tried) DDPRUN_SKIP("this kernel has no seccomp");
}

TEST_CASE("spares that end with the job are no news", "[group]") {
  const ddprun::testing::HeardLog heard;
  Job job;
  bool ready = false, ended = false;
  job.group->keep_spares(1, 0,
                         {.on_ready = [&](int, int, std::int64_t) { ready = true; },
                          .on_ended = [&](int, int, const ExitStatus&) { ended = true; }});
  WorkerSpec spare = shell(0, "echo >&4; exec sleep 1000");
  spare.is_spare = true;
  job.group->stand_by({spare});
  REQUIRE(job.run_until([&] { return ready; }));

  job.group->stop_spares();

  REQUIRE(job.run_until([&] { return ended; }));
  CHECK(heard.text().empty());
}

TEST_CASE("a log file that cannot be written is a start error that names it", "[group]") {
  Job job;
  WorkerSpec spec = shell(0, "exit 0");
  spec.output.err.file = "/proc/no/such/file";

  std::string message;
  try {
    job.group->start({spec});
  } catch (const StartError& error) {
    message = error.what();
  }

  CHECK(message.find("/proc/no/such/file") != std::string::npos);
}

TEST_CASE("stop asks with the signal, and marks only who was alive", "[group]") {
  Job job;
  job.group->start({shell(0, "exit 5"), shell(1,
                                              "trap 'echo asked; exit 0' TERM; echo up; "
                                              "while :; do :; done")});
  REQUIRE(job.wait_for("up"));
  REQUIRE(job.run_until([&] { return job.exits.size() == 1; }));
  job.group->stop(SIGTERM, 10s);

  REQUIRE(job.run_until_reaped());

  CHECK(job.exits.at(0).exit_code == 5);
  CHECK_FALSE(job.exits.at(0).stopped_by_us);
  CHECK(job.exits.at(1).stopped_by_us);
  CHECK(job.exits.at(1).exit_code == 0);
  CHECK(job.console_text().find("asked") != std::string::npos);
}

TEST_CASE("16.3: a worker that is killed as lost has failed by itself, and nobody else is asked",
          "[group]") {
  Job job;
  job.group->start({shell(0, "trap '' TERM; echo up 0; kill -STOP $$"),
                    shell(1, "trap 'echo asked' TERM; echo up 1; while :; do sleep 1000; done")});
  REQUIRE(job.wait_for("up 0"));
  REQUIRE(job.wait_for("up 1"));
  job.group->kill_worker(0);
  REQUIRE(job.run_until([&] { return job.exits.size() == 1; }));
  CHECK(job.exits.at(0).local_rank == 0);
  CHECK(job.exits.at(0).signal == SIGKILL);
  CHECK_FALSE(job.exits.at(0).stopped_by_us);
  CHECK(job.group->running() == 1);
  CHECK(job.console_text().find("asked") == std::string::npos);
  job.group->stop(SIGKILL, 0ms);
  REQUIRE(job.run_until_reaped());
}

TEST_CASE("a worker that died just before stop is a cause, not a victim", "[group]") {
  Job job;
  job.group->start({shell(0, "exit 9")});
  const int pidfd = open_pidfd(job.group->pids().at(0));
  REQUIRE(ends_within(pidfd, 20'000));  // Dead, but the group has not seen it yet.
  job.group->stop(SIGTERM, 10s);

  REQUIRE(job.run_until_reaped());

  CHECK_FALSE(job.exits.at(0).stopped_by_us);
  ::close(pidfd);
}

TEST_CASE("a worker that ignores the signal is killed after the grace", "[group]") {
  Job job;
  job.group->start({shell(0, "trap '' TERM; echo up; while :; do sleep 1000; done")});
  REQUIRE(job.wait_for("up"));
  job.group->stop(SIGTERM, 50ms);

  REQUIRE(job.run_until_reaped());

  CHECK(job.exits.at(0).signal == SIGKILL);
  CHECK(job.exits.at(0).stopped_by_us);
}

TEST_CASE("a second stop with no grace kills at once", "[group]") {
  Job job;
  job.group->start({shell(0, "trap '' TERM; echo up; while :; do sleep 1000; done")});
  REQUIRE(job.wait_for("up"));
  job.group->stop(SIGTERM, 1h);
  job.group->stop(SIGTERM, 0ms);

  REQUIRE(job.run_until_reaped());

  CHECK(job.exits.at(0).signal == SIGKILL);
}

TEST_CASE("stop wakes a stopped worker so that it can answer", "[group]") {
  Job job;
  job.group->start({shell(0, "trap 'exit 4' TERM; echo up; kill -STOP $$; while :; do :; done")});
  REQUIRE(job.wait_for("up"));
  const int pid = job.group->pids().at(0);
  REQUIRE(job.run_until([&] { return read_process(pid).state == 'T'; }));
  job.group->stop(SIGTERM, 10s);

  REQUIRE(job.run_until_reaped());

  CHECK(job.exits.at(0).exit_code == 4);
}

TEST_CASE("a signal is passed on without stopping", "[group]") {
  Job job;
  job.group->start({shell(0, "trap 'echo got it; exit 0' USR1; echo up; while :; do :; done")});
  REQUIRE(job.wait_for("up"));
  job.group->forward_signal(SIGUSR1);

  REQUIRE(job.run_until_reaped());

  CHECK(job.exits.at(0).success());
  CHECK_FALSE(job.exits.at(0).stopped_by_us);
}

TEST_CASE("what a worker leaves behind does not outlive the group", "[group]") {
  const std::string how = GENERATE(
      as<std::string>(), "sleep 1000 & echo left $!", "setsid sleep 1000 & echo left $!",
      "(setsid sh -c 'sleep 1000 >/dev/null & echo left $!' &) | cat",
      "F=$(mktemp -u) && mkfifo $F; setsid sh -c \"trap '' TERM; echo left \\$\\$; echo >$F; "
      "while :; do sleep 1000; done\" & read x <$F; rm $F");
  INFO(how);
  WorkerGroupLimits limits;
  limits.leftover_grace = 100ms;
  Job job(limits);
  job.group->start({shell(0, how + "; exit 0")});

  REQUIRE(job.run_until_reaped());

  const int left = number_after(job.console_text(), "left");
  REQUIRE(left > 0);
  CHECK_FALSE(is_alive(left));
  CHECK(job.exits.at(0).success());
  CHECK(read_own_children().size() == 1);  // The guard; no zombies.
}

TEST_CASE("PyTorch's keeper of shared memory ends by itself, and no attempt waits for it",
          "[group]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string keeper = folder.path() + "/torch_shm_manager";
  const std::string cleaned = folder.path() + "/cleaned", client = folder.path() + "/last_client";
  // No child of its own clears up: it would be told to end, as all that workers have started.
  std::ofstream(keeper) << "#!/bin/sh\necho up\nread -r line < " << client << "\n: > " << cleaned
                        << "\n";
  std::filesystem::permissions(keeper, std::filesystem::perms::owner_all);
  REQUIRE(::mkfifo(client.c_str(), 0600) == 0);
  const auto let_go = [&] { std::ofstream(client) << "gone\n"; };
  Job job;
  job.group->start({shell(0, "setsid " + keeper + " & wait")});
  REQUIRE(job.wait_for("up"));

  SECTION("at the end of the job it is waited for") {
    job.group->stop(SIGTERM, ddprun::testing::patience(60s));
    REQUIRE(job.run_until([&] { return job.exits.size() == 1; }));
    CHECK_FALSE(job.reaped);
    let_go();
    REQUIRE(job.run_until_reaped());
    CHECK(std::filesystem::exists(cleaned));
  }
  SECTION("the next attempt begins without it") {
    job.group->stop(SIGTERM, ddprun::testing::patience(60s), Keep::Parking);
    REQUIRE(job.run_until_reaped());
    CHECK_FALSE(std::filesystem::exists(cleaned));
    let_go();
    CHECK(job.run_until([&] { return std::filesystem::exists(cleaned); }));
    // In a job the next attempt reaps it.
    for (const int pid : WorkerMembers::adopted_children())
      CHECK(::waitpid(pid, nullptr, 0) == pid);
  }
}

TEST_CASE("what no worker has started is neither ended nor waited for", "[group]") {
  Job job;
  job.group->start({shell(0, "exec sleep 1000")});
  const int foreign = foreign_orphan();
  REQUIRE(foreign > 0);

  job.group->stop(SIGTERM, 10s);
  REQUIRE(job.run_until_reaped());

  CHECK(is_alive(foreign));
  ::kill(foreign, SIGKILL);
  CHECK(::waitpid(foreign, nullptr, 0) == foreign);
}

TEST_CASE("who was seen below a worker is known without its environment", "[group]") {
  Job job;
  job.group->start({shell(0,
                          "env -i A=b setsid /bin/sh -c \"trap '' TERM; echo left \\$\\$; "
                          "while :; do /bin/sleep 1000; done\" & wait")});
  REQUIRE(job.wait_for("left"));
  const int left = number_after(job.console_text(), "left");

  job.group->stop(SIGTERM, 200ms);
  REQUIRE(job.run_until_reaped());

  CHECK_FALSE(is_alive(left));
}

TEST_CASE("14.8: a guard that somebody killed is reaped and replaced", "[group]") {
  Job job;
  job.group->start({shell(0, "echo up; exec sleep 1000")});
  REQUIRE(job.wait_for("up"));
  const auto guards = [] {
    std::vector<int> found;
    for (const int pid : read_own_children()) {
      if (read_process(pid).name == "ddprun-guard") found.push_back(pid);
    }
    return found;
  };
  REQUIRE(job.run_until([&] { return guards().size() == 1; }));  // It names itself first.
  const int killed = guards().front();

  ::kill(killed, SIGKILL);

  CHECK(job.run_until([&] {  // A zombie has its name still.
    const std::vector<int> now = guards();
    return now.size() == 1 && now.front() != killed;
  }));
  CHECK(job.group->running() == 1);
  job.group->stop(SIGTERM, 5s);
  REQUIRE(job.run_until_reaped());
  CHECK(read_own_children().size() == 1);

  // Between two attempts nobody hears of it.
  const int idle = guards().front(), pidfd = open_pidfd(idle);
  ::kill(idle, SIGKILL);
  REQUIRE(ends_within(pidfd, 20'000));
  ::close(pidfd);
  job.reaped = false;
  job.group->start({shell(0, "echo again; exec sleep 1000")});
  CHECK(job.run_until([&] {
    const std::vector<int> now = guards();
    return now.size() == 1 && now.front() != idle;
  }));
  job.group->stop(SIGTERM, 5s);
  REQUIRE(job.run_until_reaped());
}

TEST_CASE("who calls itself a guard and does not end is killed, if later than others", "[group]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string program = folder / "ddprun-guard";  // From which the kernel takes the name.
  std::filesystem::create_symlink("/bin/sleep", program);
  WorkerGroupLimits limits;
  limits.kill_wait = 100ms;
  Job job(limits);
  job.group->start(
      {shell(0, "trap '' TERM; setsid " + program + " 1000 & echo left $!; exec sleep 1000")});
  REQUIRE(job.wait_for("left"));
  const int left = number_after(job.console_text(), "left");
  REQUIRE(job.run_until([&] { return read_process(left).name == "ddprun-guard"; }));

  job.group->stop(SIGTERM, 100ms);
  REQUIRE(job.run_until_reaped());

  CHECK(job.run_until([&] { return !is_alive(left); }));
  CHECK(job.exits.at(0).signal == SIGKILL);
}

TEST_CASE("stop reaches grandchildren that detached while their worker lives", "[group]") {
  Job job;
  job.group->start({shell(0, "(setsid sh -c 'echo left $$; exec sleep 1000' &); exec sleep 1000")});
  REQUIRE(job.wait_for("left"));
  const int left = number_after(job.console_text(), "left");
  job.group->stop(SIGTERM, 10s);

  REQUIRE(job.run_until_reaped());

  CHECK_FALSE(is_alive(left));
  CHECK(job.exits.at(0).signal == SIGTERM);
}

TEST_CASE("orphans that end while the workers run leave no zombie", "[group]") {
  Job job;
  job.group->start({shell(0, "(setsid sh -c 'echo gone $$' &); exec sleep 1000")});
  REQUIRE(job.wait_for("gone"));
  const int gone = number_after(job.console_text(), "gone");

  CHECK(job.run_until([&] { return read_process(gone).pid == 0; }));
}

TEST_CASE("16.3: who parks is in the next attempt what it was, with what it has started",
          "[group]") {
  Job job;
  // The child is an orphan of the worker's session.
  const std::vector<WorkerSpec> specs = {
      parker(
          0,
          "sh -c 'sleep 300 & echo child $!'; printf k >&4; echo ready; head -c 1 <&4 >/dev/null; "
          "echo >&4; sleep 300"),
      shell(1, "echo other $$; sleep 300")};
  job.group->start(specs);
  REQUIRE(job.wait_for("ready"));
  REQUIRE(job.wait_for("other"));
  const int child = number_after(job.console_text(), "child");
  const auto pids = job.group->pids();

  job.group->stop(SIGTERM, 20s, Keep::Parking, "why");

  REQUIRE(job.run_until_reaped());
  REQUIRE(job.exits.size() == 1);
  CHECK(job.exits[0].rank == 1);
  CHECK(job.group->kept() == 1);
  CHECK(is_alive(child));

  job.reaped = false;
  job.group->start(specs);
  CHECK(job.group->was_kept(0));
  CHECK_FALSE(job.group->was_kept(1));
  CHECK(job.group->pids()[0] == pids[0]);
  CHECK(job.group->pids()[1] != pids[1]);

  job.group->stop(SIGTERM, 20s);
  REQUIRE(job.run_until_reaped());
  CHECK(job.group->kept() == 0);
  CHECK_FALSE(is_alive(child));
  CHECK_FALSE(is_alive(pids[0]));
}

TEST_CASE("16.3: the next attempt does not wait until the memory of the dead is free", "[group]") {
  bool before_it_was_free = false;
  // Once is enough: on a busy machine the kernel may be done before this process has its turn.
  for (int round = 0; round < 20 && !before_it_was_free; ++round) {
    Job job;
    // What most workers have: a connection, a file, and threads, one of which frees the memory.
    job.group->start(
        {parker(0, park_at_once + "; sleep 300"),
         with_much_memory(
             1,
             "import socket, tempfile; pair = socket.socketpair()\n"
             "f = tempfile.TemporaryFile()\n"
             "l = socket.create_server(('127.0.0.1', 0))\n"
             "c = socket.create_connection(l.getsockname()); l.close()\n"
             "import threading, time\n"
             "for i in range(4):\n"
             "  threading.Thread(target=time.sleep, args=(300,), daemon=True).start()")});
    REQUIRE(job.wait_for("ready"));
    REQUIRE(job.wait_for("full"));
    const auto pids = job.group->pids();
    const int pidfd = open_pidfd(pids[1]);

    kill_and_tell(*job.group, pids[1]);
    REQUIRE(job.run_until([&] { return !job.exits.empty(); }));
    CHECK(job.exits[0].signal == SIGKILL);
    job.group->stop(SIGTERM, 20s, Keep::Parking, "why");
    REQUIRE(job.run_until_reaped());
    before_it_was_free = !ends_within(pidfd, 0);
    job.reaped = false;
    job.group->start({parker(0, ""), shell(1, "sleep 300")});
    CHECK(job.group->was_kept(0));

    // Its pid is reaped in the attempt that follows, and is not told of again.
    REQUIRE(job.run_until([&] { return read_process(pids[1]).pid == 0; }));
    CHECK(job.exits.size() == 1);
    ::close(pidfd);
    job.group->stop(SIGKILL, 0s);
    REQUIRE(job.run_until_reaped());
  }
  CHECK(before_it_was_free);
}

TEST_CASE("16.3: a job is not over before the memory of its workers is free", "[group]") {
  Job job;
  job.group->start({with_much_memory(0)});
  REQUIRE(job.wait_for("full"));
  const int pid = job.group->pids()[0];
  const int pidfd = open_pidfd(pid);
  kill_and_tell(*job.group, pid);
  REQUIRE(job.run_until([&] { return !job.exits.empty(); }));

  SECTION("where no attempt follows") { job.group->stop(SIGTERM, 20s); }
  SECTION("and an attempt that followed does not end before it either") {
    job.group->stop(SIGTERM, 20s, Keep::Parking, "why");
    REQUIRE(job.run_until_reaped());
    job.reaped = false;
    job.group->start({shell(0, "exit 0")});
  }

  REQUIRE(job.run_until_reaped());
  CHECK(ends_within(pidfd, 0));
  CHECK(read_process(pid).pid == 0);
  ::close(pidfd);
}

TEST_CASE("16.3: who leaves more than memory is waited for", "[group]") {
  std::string before;
  SECTION("a child") { before = "import subprocess; subprocess.Popen(['sleep', '300'])"; }
  SECTION("a device") { before = "device = open('/dev/ptmx', 'rb')"; }
  SECTION("a port that is listened at") {
    before = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()";
  }
  SECTION("a port of datagrams") {
    before = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0))";
  }
  SECTION("a file that is locked") {
    before = "import fcntl, tempfile; f = tempfile.TemporaryFile(); fcntl.flock(f, fcntl.LOCK_EX)";
  }
  SECTION("a range of a file that is locked") {
    before = "import fcntl, tempfile; f = tempfile.TemporaryFile(); fcntl.lockf(f, fcntl.LOCK_EX)";
  }
  Job job;
  job.group->start({with_much_memory(0, before)});
  REQUIRE(job.wait_for("full"));
  const int pid = job.group->pids()[0];
  const int pidfd = open_pidfd(pid);

  kill_and_tell(*job.group, pid);
  REQUIRE(job.run_until([&] { return !job.exits.empty(); }));
  job.group->stop(SIGTERM, 20s, Keep::Parking, "why");

  REQUIRE(job.run_until_reaped());
  CHECK(ends_within(pidfd, 0));
  CHECK(read_process(pid).pid == 0);
  ::close(pidfd);
}

TEST_CASE("16.3: an attempt may go on without a place, whose next worker warms up beside it",
          "[group]") {
  Job job;
  bool spare_is_ready = false;
  job.group->keep_spares(
      0, 2, {.on_ready = [&](int place, int, std::int64_t) { spare_is_ready = place == 1; }});
  std::vector<WorkerSpec> specs = {parker(0, park_at_once + "; exec sleep 300"),
                                   shell(1, "exec sleep 300")};
  specs[1].place = 1;
  std::vector<WorkerSpec> spares = {shell(0, "exit 9"),
                                    parker(1, "echo >&4; head -c 1 <&4 >/dev/null; exec sleep 9")};
  spares[1].place = 1;
  spares[1].is_spare = true;
  job.group->start(specs, spares);
  REQUIRE(job.wait_for("ready"));
  const auto pids = job.group->pids();
  CHECK_FALSE(job.group->places(2)[0].kept);

  job.group->stop(SIGTERM, 20s, Keep::Parking, "why");
  REQUIRE(job.run_until_reaped());
  job.reaped = false;
  CHECK(job.group->places(2)[0].kept);
  CHECK_FALSE(job.group->places(2)[1].kept);

  job.group->start({specs[0]}, spares);
  CHECK(job.group->pids() == std::vector<int>{pids[0]});
  REQUIRE(job.run_until([&] { return spare_is_ready; }));
  CHECK(job.group->places(2)[1].spare);
  job.group->stop(SIGTERM, 20s);
  REQUIRE(job.run_until_reaped());
}

TEST_CASE("16.3: a replacement that neither gets ready nor ends is killed, and not waited for",
          "[group]") {
  Job job;
  std::vector<int> started, ended;
  bool given_up = false;
  job.group->keep_spares(0, 2,
                         {.on_started = [&](int, int pid) { started.push_back(pid); },
                          .on_ended =
                              [&](int, int pid, const ExitStatus& status) {
                                ended.push_back(pid);
                                CHECK(status.signal == SIGKILL);
                              },
                          .on_given_up = [&] { given_up = true; }},
                         {.ready_by = 50ms, .pause = 1ms});
  std::vector<WorkerSpec> spares = {shell(0, "exit 9"),
                                    shell(1, "trap '' TERM; while :; do sleep 300; done")};
  spares[1].is_spare = true;
  job.group->start({shell(0, "exec sleep 300")}, spares);

  REQUIRE(job.run_until([&] { return given_up && ended.size() == 3; }));

  CHECK(started.size() == 3);
  CHECK(std::is_permutation(started.begin(), started.end(), ended.begin(), ended.end()));
  CHECK(job.group->places(2)[1].no_hope);
  job.group->stop(SIGTERM, 20s);
  REQUIRE(job.run_until_reaped());
}

TEST_CASE("16.3: parked processes are stopped like others, and told as reaped once more",
          "[group]") {
  Job job;
  job.group->start({parker(0, park_at_once + "; sleep 300")});
  REQUIRE(job.wait_for("ready"));
  job.group->stop(SIGTERM, 20s, Keep::Held);
  CHECK(job.group->kept() == 1);
  job.group->stop(SIGTERM, 20s, Keep::Parking, "why");
  REQUIRE(job.run_until_reaped());
  REQUIRE(job.exits.empty());
  job.reaped = false;

  job.group->stop(SIGTERM, 20s);

  REQUIRE(job.run_until_reaped());
  REQUIRE(job.exits.size() == 1);
  CHECK(job.exits[0].stopped_by_us);
  CHECK(job.exits[0].signal == SIGTERM);
}

TEST_CASE("16.3: who hangs up is asked like others, and who dies parked is told and forgotten",
          "[group]") {
  Job job;
  SECTION("before the attempt is over") {
    job.group->start({parker(0, "printf k >&4; exec 4>&-; echo closed; sleep 300")});
    REQUIRE(job.wait_for("closed"));
    job.group->stop(SIGTERM, 20s, Keep::Parking, "why");
    REQUIRE(job.run_until_reaped());
    REQUIRE(job.exits.size() == 1);
    CHECK(job.exits[0].signal == SIGTERM);
    CHECK(job.group->kept() == 0);
  }
  SECTION("dead when it is parked") {
    job.group->start({parker(0, park_at_once + "; sleep 300")});
    REQUIRE(job.wait_for("ready"));
    job.group->stop(SIGTERM, 20s, Keep::Parking, "why");
    REQUIRE(job.run_until_reaped());
    const auto pids = job.group->pids();
    REQUIRE(pids.size() == 1);
    ::kill(pids[0], SIGKILL);
    REQUIRE(job.run_until([&] { return job.exits.size() == 1; }));
    CHECK(job.exits[0].stopped_by_us);
    CHECK(job.group->kept() == 0);
    job.reaped = false;
    job.group->start({shell(0, "exit 3")});
    REQUIRE(job.run_until_reaped());
    CHECK(job.exits.back().exit_code == 3);
  }
}

TEST_CASE("16.3: what a process has started ends with it, and nobody else's does", "[group]") {
  // In a process group of its own, so that it is the session alone that tells whose it is.
  const auto with_orphan = [](const std::string& name) {
    return "bash -c 'set -m; sleep 300 & echo " + name + " $!'; ";
  };
  Job job;
  int spares_pid = 0;
  job.group->keep_spares(1, 0, {.on_ready = [&](int, int pid, std::int64_t) { spares_pid = pid; }});
  std::vector<WorkerSpec> specs = {parker(0, with_orphan("left") + park_at_once + "; sleep 300"),
                                   parker(1, with_orphan("right") + park_at_once + "; sleep 300")};
  specs[1].place = 1;
  WorkerSpec spare = shell(0, with_orphan("waiting") + "echo >&4; sleep 300");
  spare.is_spare = true;
  job.group->start(specs, {spare});
  for (const char* text : {"[0]:ready", "[1]:ready", "waiting"}) REQUIRE(job.wait_for(text));
  REQUIRE(job.run_until([&] { return spares_pid != 0; }));
  std::map<std::string, int> orphans;
  for (const char* name : {"left", "right", "waiting"}) {
    orphans[name] = number_after(job.console_text(), name);
  }
  std::set<std::string> end = {"right"};
  job.group->stop(SIGTERM, 20s, Keep::Parking, "why");
  REQUIRE(job.run_until_reaped());
  REQUIRE(job.group->kept() == 2);
  const auto pids = job.group->pids();

  SECTION("when it dies parked") {
    ::kill(pids[1], SIGKILL);
    REQUIRE(job.run_until([&] { return job.exits.size() == 1; }));
  }
  SECTION("when it is found dead") {
    const int pidfd = open_pidfd(pids[1]);
    ::kill(pids[1], SIGKILL);
    REQUIRE(ends_within(pidfd, 20'000));
    ::close(pidfd);
    job.group->look_at_kept();
  }
  SECTION("when it has no place in the next attempt") {
    job.group->start({specs[0]}, {spare});
    CHECK(job.group->pids() == std::vector<int>{pids[0]});
  }
  SECTION("when all are given up") {
    job.group->end_kept();
    end = {"left", "right"};
  }
  SECTION("when it is a spare") {
    ::kill(spares_pid, SIGKILL);
    end = {"waiting"};
  }

  for (const std::string& name : end) {
    CHECK(job.run_until([&] { return !is_alive(orphans.at(name)); }));
  }
  for (const auto& [name, pid] : orphans) CHECK(is_alive(pid) != end.contains(name));
}

TEST_CASE("16.3: a parked process that takes long to die holds up nobody", "[group]") {
  Job job;
  const auto spec = parker(0, park_at_once + "; sleep 300");
  job.group->start({spec});
  REQUIRE(job.wait_for("ready"));
  job.group->stop(SIGTERM, 20s, Keep::Parking, "why");
  REQUIRE(job.run_until_reaped());
  const int pid = job.group->pids().at(0);
  Debugger debugger(pid);
  if (!debugger.holds()) DDPRUN_SKIP("ptrace is not permitted");
  const int pidfd = open_pidfd(pid);
  ::kill(pid, SIGKILL);
  REQUIRE(ends_within(pidfd, 20'000));
  ::close(pidfd);

  const auto begun = std::chrono::steady_clock::now();
  job.group->look_at_kept();
  CHECK(std::chrono::steady_clock::now() - begun < ddprun::testing::patience(2s));
  REQUIRE(job.exits.size() == 1);
  CHECK(job.exits[0].signal == SIGKILL);
  CHECK(job.group->kept() == 0);
  job.reaped = false;
  job.group->start({shell(0, "exit 3")});
  REQUIRE(job.run_until([&] { return job.exits.size() == 2; }));
  CHECK(job.exits[1].exit_code == 3);
  debugger.release();
  REQUIRE(job.run_until_reaped());
  CHECK(read_process(pid).pid == 0);
}

TEST_CASE("16.3: one that does not park in time is asked then, and said to be late", "[group]") {
  Job job;
  job.group->start({parker(0, "printf k >&4; echo ready; sleep 300")});
  REQUIRE(job.wait_for("ready"));

  job.group->stop(SIGTERM, 100ms, Keep::Parking, "why");

  REQUIRE(job.run_until_reaped());
  REQUIRE(job.exits.size() == 1);
  CHECK(job.exits[0].signal == SIGTERM);
  CHECK(job.exits[0].note.find("had said that it can park") != std::string::npos);
}

TEST_CASE("16.3: who did not end in time is named as killed, and who did not park is asked first",
          "[group]") {
  const ddprun::testing::HeardLog heard;
  Job job;
  const std::string stubborn = "trap '' TERM; echo ready; while :; do sleep 300; done";
  job.group->start({shell(0, stubborn), parker(1, "printf k >&4; " + stubborn)});
  REQUIRE(job.wait_for("[0]:ready"));
  REQUIRE(job.wait_for("[1]:ready"));
  std::string at_first;  // What was said when the first of them had ended.
  job.on_exit = [&](const WorkerEnd&) {
    if (at_first.empty()) at_first = heard.text();
  };

  job.group->stop(SIGTERM, 100ms, Keep::Parking, "why");

  REQUIRE(job.run_until_reaped());
  INFO(heard.text());
  REQUIRE(job.exits.size() == 2);
  CHECK(job.exits[0].rank == 0);
  CHECK(at_first.find("rank 0 did not end within 100 ms of SIGTERM: SIGKILL") != std::string::npos);
  CHECK(at_first.find("rank 1 (pid ") != std::string::npos);
  CHECK(at_first.find("said that it can park") != std::string::npos);
}

TEST_CASE("a group can start again from its last callback", "[group]") {
  Job job;
  int attempts = 0;
  job.on_all_reaped = [&] {
    if (++attempts < 50) {
      job.reaped = false;
      job.group->start({shell(0, "exit 1")});
    }
  };
  job.group->start({shell(0, "exit 1")});

  REQUIRE(job.run_until([&] { return attempts == 50; }));

  CHECK(job.exits.size() == 50);
}

TEST_CASE("a group that is destroyed kills its workers", "[group]") {
  Job job;
  job.group->start({shell(0, "trap '' TERM; echo up; while :; do sleep 1000; done")});
  REQUIRE(job.wait_for("up"));
  const int pid = job.group->pids().at(0);

  job.group.reset();

  CHECK_FALSE(is_alive(pid));
  CHECK(job.exits.empty());
  CHECK(read_own_children().empty());
}

TEST_CASE("a worker that SIGKILL does not end is reported after a bounded wait", "[group]") {
  WorkerGroupLimits limits;
  limits.kill_wait = 100ms;
  Job job(limits);
  job.group->start({shell(0, "echo up; exec sleep 1000")});
  REQUIRE(job.wait_for("up"));
  const int pid = job.group->pids().at(0);
  Debugger debugger(pid);
  if (debugger.holds()) {
    job.group->stop(SIGTERM, 0ms);
    CHECK(job.run_until_reaped());
    REQUIRE(job.exits.size() == 1);
    CHECK(job.exits[0].note.find("pid " + std::to_string(pid)) != std::string::npos);
    CHECK(job.exits[0].note.find("SIGKILL") != std::string::npos);
  }
  debugger.release();
  ::waitpid(pid, nullptr, 0);
  remove_spawned_child(pid);
  if (!debugger.holds()) DDPRUN_SKIP("ptrace is not permitted");
}

TEST_CASE("who began to end first is reported first, even if it gets through later", "[group]") {
  WorkerGroupLimits limits;
  SECTION("a worker that is late is waited for") { limits.order_wait = 20s; }
  SECTION("but not for ever") { limits.order_wait = 50ms; }
  Job job(limits);
  job.group->start({shell(0, "echo up 0; exec sleep 300"), shell(1, "echo up 1; exec sleep 300")});
  REQUIRE((job.wait_for("up 0") && job.wait_for("up 1")));
  const std::vector<int> pids = job.group->pids();
  Debugger debugger(pids[0]);
  if (!debugger.holds()) DDPRUN_SKIP("ptrace is not permitted");
  const int pidfd = open_pidfd(pids[0]);
  ::kill(pids[0], SIGKILL);
  REQUIRE(ends_within(pidfd, 20'000));
  ::close(pidfd);

  ::kill(pids[1], SIGTERM);
  REQUIRE(job.run_until([&] { return read_process(pids[1]).pid == 0; }));  // It was reaped.

  if (limits.order_wait > 1s) {
    CHECK(job.exits.empty());
    debugger.release();
    REQUIRE(job.run_until_reaped());
    REQUIRE(job.exits.size() == 2);
    CHECK(job.exits[0].rank == 0);
    CHECK(job.exits[1].rank == 1);
  } else {
    REQUIRE(job.run_until([&] { return !job.exits.empty(); }));
    CHECK(job.exits[0].rank == 1);
    debugger.release();
    CHECK(job.run_until_reaped());
  }
}

TEST_CASE("the launcher's death by SIGKILL takes the workers and all they started", "[group]") {
  int pids[2];
  REQUIRE(::pipe2(pids, O_CLOEXEC) == 0);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    Job job;
    job.group->start(
        {shell(0, "sleep 1000 & echo left $!; exec sleep 1000"),
         shell(1, "(setsid sh -c 'echo away $$; exec sleep 1000' &); exec sleep 1000")});
    job.wait_for("left");
    job.wait_for("away");
    const std::string text = job.console_text();
    const int found[4] = {job.group->pids().at(0), job.group->pids().at(1),
                          number_after(text, "left"), number_after(text, "away")};
    if (::write(pids[1], found, sizeof found) != sizeof found) ::_exit(1);
    job.run_until([] { return false; }, 1h);
    ::_exit(0);
  }
  int found[4] = {};
  REQUIRE(::read(pids[0], found, sizeof found) == sizeof found);
  int pidfds[4];
  for (int i = 0; i < 4; ++i) {
    REQUIRE(found[i] > 0);
    pidfds[i] = open_pidfd(found[i]);
    REQUIRE(pidfds[i] >= 0);
  }

  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);

  for (int pidfd : pidfds) {
    CHECK(ends_within(pidfd, 10'000));
    ::close(pidfd);
  }
  ::close(pids[0]);
  ::close(pids[1]);
}
