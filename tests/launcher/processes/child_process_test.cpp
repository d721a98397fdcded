// One child: how it starts, what it inherits, how it ends.
#include "launcher/processes/child_process.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <fstream>

#include "launcher/machine/cpu_topology.h"
#include "launcher/machine/find_program.h"
#include "launcher/processes/child_sessions.h"
#include "tests/testing/catch.h"

using namespace ddprun::launcher;

namespace {

ChildSetup setup_of(std::vector<std::string> argv) {
  ChildSetup setup;
  setup.argv = std::move(argv);
  setup.environment = {"PATH=/usr/bin:/bin", "SENTINEL=here"};
  return setup;
}

std::optional<ChildProcess> start(const ChildSetup& setup) {
  int error_number = 0;
  return ChildProcess::spawn(setup, error_number);
}

ExitStatus wait_for(ChildProcess& child) {
  pollfd ended{child.pidfd(), POLLIN, 0};
  REQUIRE(::poll(&ended, 1, 20'000) == 1);
  const auto status = child.reap();
  REQUIRE(status);
  return *status;
}

// Everything a child writes to its stdout.
std::string output_of(const std::string& script, const std::vector<int>& cpus = {}) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  ChildSetup setup = setup_of({"sh", "-c", script});
  setup.stdout_fd = ends[1];
  setup.cpus = cpus;
  auto child = start(setup);
  REQUIRE(child);
  CHECK(child->binding_error() == 0);
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  wait_for(*child);
  return text;
}

template <std::size_t N>
bool filter_calls(sock_filter (&steps)[N]) {
  const sock_fprog program{N, steps};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// From here on close_range fails in this process as it does before Linux 5.9.
bool refuse_close_range() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  return filter_calls(steps);
}

// From here on clone with CLONE_PIDFD fails in this process as it does under qemu.
bool refuse_clone_with_pidfd() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_PIDFD, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  return filter_calls(steps);
}

}  // namespace

TEST_CASE("a child's exit code comes back whole", "[child]") {
  for (int code : {0, 1, 2, 3, 71, 126, 127, 128, 137, 254, 255}) {
    auto child = start(setup_of({"sh", "-c", "exit " + std::to_string(code)}));
    REQUIRE(child);
    const ExitStatus status = wait_for(*child);
    CHECK(status.exit_code == code);
    CHECK(status.signal == 0);
  }
}

TEST_CASE("a child that a signal ends says which", "[child]") {
  for (int signal : {SIGHUP, SIGINT, SIGKILL, SIGUSR1, SIGPIPE, SIGTERM, SIGABRT}) {
    auto child = start(setup_of({"sleep", "1000"}));
    REQUIRE(child);
    child->send(signal);
    CHECK(wait_for(*child).signal == signal);
  }
}

TEST_CASE("a running child has no exit status yet", "[child]") {
  auto child = start(setup_of({"sleep", "1000"}));
  REQUIRE(child);
  CHECK_FALSE(child->has_ended());
  CHECK_FALSE(child->reap());
  CHECK(is_spawned_child(child->pid()));

  child->send(SIGKILL);
  wait_for(*child);

  CHECK(child->has_ended());
  CHECK_FALSE(is_spawned_child(child->pid()));
  CHECK_FALSE(child->reap());
}

TEST_CASE("a program that cannot be executed gives the reason and leaves no process", "[child]") {
  const std::string script = "/tmp/ddprun_child_" + std::to_string(::getpid());
  std::ofstream(script) << "no interpreter line\n";
  const auto before = read_own_children();  // A case before this one may have left its dead.
  int error_number = 0;

  CHECK_FALSE(ChildProcess::spawn(setup_of({"/no/such"}), error_number));
  CHECK(error_number == ENOENT);
  CHECK_FALSE(ChildProcess::spawn(setup_of({"no-such-program"}), error_number));
  CHECK(error_number == ENOENT);
  CHECK_FALSE(ChildProcess::spawn(setup_of({script}), error_number));
  CHECK(error_number == EACCES);
  CHECK_FALSE(ChildProcess::spawn(setup_of({"/tmp"}), error_number));
  CHECK(error_number == EACCES);
  ::chmod(script.c_str(), 0755);
  CHECK_FALSE(ChildProcess::spawn(setup_of({script}), error_number));
  CHECK(error_number == ENOEXEC);
  CHECK_FALSE(ChildProcess::spawn(setup_of({}), error_number));
  CHECK(error_number == EINVAL);

  CHECK(read_own_children() == before);
  ::unlink(script.c_str());
}

TEST_CASE("a child gets exactly the environment it was given", "[child]") {
  CHECK(output_of("echo $SENTINEL $HOME") == "here\n");
}

TEST_CASE("a child runs on the CPUs that it is bound to, and we go on as before", "[child]") {
  const auto allowed = allowed_cpus();
  REQUIRE_FALSE(allowed.empty());
  const std::string script = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status";

  CHECK(output_of(script, {allowed.back()}) == std::to_string(allowed.back()) + "\n");
  CHECK(output_of(script) == format_cpu_list(allowed) + "\n");
  CHECK(allowed_cpus() == allowed);
}

TEST_CASE("a child that cannot be bound runs all the same, and says why", "[child]") {
  ChildSetup setup = setup_of({"sh", "-c", "exit 3"});
  setup.cpus = {60'000};  // No kernel has so many.

  auto child = start(setup);

  REQUIRE(child);
  CHECK(child->binding_error() == EINVAL);
  CHECK(wait_for(*child).exit_code == 3);
}

TEST_CASE("a child has only descriptors 0, 1 and 2, whatever we have open", "[child]") {
  const int leaky = ::fcntl(0, F_DUPFD, 100);  // No O_CLOEXEC.
  const std::string listed = output_of("for f in /proc/$$/fd/*; do echo ${f##*/}; done");
  CHECK(listed.substr(0, 6) == "0\n1\n2\n");
  CHECK(listed.find(std::to_string(leaky) + "\n") == std::string::npos);
  ::close(leaky);
}

TEST_CASE("a child has no others of our descriptors where the kernel has no close_range",
          "[child]") {
  constexpr int cannot_filter = 2, wrong = 1, right = 0;
  const int pid = ::fork();
  if (pid == 0) {  // A filter stays until the process ends.
    // More than one read of the kernel's list holds. What the shell opens to look is below 100.
    for (int i = 0; i < 300; ++i) ::fcntl(0, F_DUPFD, 100);
    if (!refuse_close_range()) ::_exit(cannot_filter);
    ChildSetup setup =
        setup_of({"sh", "-c",
                  "for f in /proc/$$/fd/*; do test ${f##*/} -lt 100 || exit 1; done; read x <&3"});
    setup.key_fd = ::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    auto child = start(setup);
    if (!child) ::_exit(wrong);
    pollfd ended{child->pidfd(), POLLIN, 0};
    const auto status = ::poll(&ended, 1, 20'000) == 1 ? child->reap() : std::nullopt;
    ::_exit(status && status->exit_code == 0 && status->signal == 0 ? right : wrong);
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == cannot_filter) DDPRUN_SKIP("this kernel has no seccomp");
  CHECK(WEXITSTATUS(status) == right);
}

TEST_CASE("a child that gets a key has it at descriptor 3, whatever its number was", "[child]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const int leaky = ::fcntl(0, F_DUPFD, 100);
  REQUIRE(::write(ends[1], "key\n", 4) == 4);
  ChildSetup setup =
      setup_of({"sh", "-c", "read word <&3; test $word = key && ! test -e /proc/$$/fd/4"});
  setup.key_fd = ends[0];

  auto child = start(setup);
  REQUIRE(child);
  CHECK(wait_for(*child).exit_code == 0);
  CHECK(::fcntl(ends[0], F_GETFD) == FD_CLOEXEC);  // Still ours.
  for (const int fd : {ends[0], ends[1], leaky}) ::close(fd);
}

TEST_CASE("a child leads its own session, with no signal blocked or ignored", "[child]") {
  sigset_t block, before;
  ::sigemptyset(&block);
  ::sigaddset(&block, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &block, &before);
  const auto old = ::signal(SIGHUP, SIG_IGN);
  const std::string text =
      output_of("echo $$; cut -d' ' -f6 /proc/$$/stat; grep -E 'Sig(Blk|Ign)' /proc/self/status");
  ::signal(SIGHUP, old);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);

  const std::string pid = text.substr(0, text.find('\n'));
  CHECK(text == pid + "\n" + pid + "\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_CASE("a child goes on ignoring what a batch script has its programs ignore", "[child]") {
  const auto old = ::signal(SIGUSR1, SIG_IGN);
  const std::string text = output_of("grep SigIgn /proc/self/status");
  ::signal(SIGUSR1, old);
  CHECK(text == "SigIgn:\t0000000000000200\n");
}

TEST_CASE("our own signal mask is as before a start", "[child]") {
  sigset_t before, after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  auto child = start(setup_of({"true"}));
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  wait_for(*child);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    CHECK(::sigismember(&before, signal) == ::sigismember(&after, signal));
  }
}

TEST_CASE("standard output and error may be swapped", "[child]") {
  // The child's 1 is our 2 and the other way round: neither dup may destroy the other's source.
  const int saved_out = ::dup(1), saved_err = ::dup(2);
  int out[2], err[2];
  REQUIRE(::pipe(out) == 0);
  REQUIRE(::pipe(err) == 0);
  ::dup2(out[1], 1);
  ::dup2(err[1], 2);
  ChildSetup setup = setup_of({"sh", "-c", "echo to-out; echo to-err >&2"});
  setup.stdout_fd = 2;
  setup.stderr_fd = 1;
  auto child = start(setup);
  ::dup2(saved_out, 1);
  ::dup2(saved_err, 2);
  REQUIRE(child);
  wait_for(*child);

  char text[64] = {};
  CHECK(::read(err[0], text, sizeof text) == 7);
  CHECK(std::string(text) == "to-out\n");
  for (int fd : {saved_out, saved_err, out[0], out[1], err[0], err[1]}) ::close(fd);
}

TEST_CASE("starting many children leaks no descriptor and no zombie", "[child]") {
  const auto descriptors = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  const int before = descriptors();
  const auto children_before = read_own_children();
  int error_number = 0;
  for (int i = 0; i < 50; ++i) {
    auto child = start(setup_of({"true"}));
    REQUIRE(child);
    wait_for(*child);
    ChildProcess::spawn(setup_of({"/no/such"}), error_number);
  }
  CHECK(descriptors() == before);
  CHECK(read_own_children() == children_before);
}

TEST_CASE("a child is started, watched and signalled where clone gives no pidfd", "[child]") {
  constexpr int cannot_filter = 2, wrong = 1, right = 0;
  const int pid = ::fork();
  if (pid == 0) {  // A filter stays until the process ends.
    if (!refuse_clone_with_pidfd()) ::_exit(cannot_filter);
    const auto child = start(setup_of({"sleep", "600"}));
    if (!child || child->pidfd() < 0) ::_exit(wrong);
    child->send(SIGTERM);
    pollfd ended{child->pidfd(), POLLIN, 0};
    ::_exit(::poll(&ended, 1, 20'000) == 1 && child->has_ended() ? right : wrong);
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == cannot_filter) DDPRUN_SKIP("this kernel has no seccomp");
  CHECK(WEXITSTATUS(status) == right);
}

TEST_CASE("a child whose output has no descriptor left does not get ours instead", "[child]") {
  constexpr int wrong = 1, right = 0, cannot_limit = 2;
  const int pid = ::fork();
  if (pid == 0) {  // A limit stays, too.
    // Free are numbers below those that a duplicate for the child may have: enough for a pidfd.
    ::close_range(3, ~0U, 0);
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    const rlimit few{8, 8};
    if (::dup3(null, 7, O_CLOEXEC) != 7 || ::setrlimit(RLIMIT_NOFILE, &few) != 0) {
      ::_exit(cannot_limit);
    }
    ChildSetup setup = setup_of({"true"});
    setup.stdout_fd = null;
    int error_number = 0;
    const auto child = ChildProcess::spawn(setup, error_number);
    ::_exit(!child && error_number == EMFILE && read_own_children().empty() ? right : wrong);
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == right);
}

TEST_CASE("a child dies with its parent", "[child]") {
  int report[2];
  REQUIRE(::pipe2(report, O_CLOEXEC) == 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    auto child = start(setup_of({"sleep", "1000"}));
    const int pid = child ? child->pid() : 0;
    if (::write(report[1], &pid, sizeof pid) != sizeof pid) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  int pid = 0;
  REQUIRE(::read(report[0], &pid, sizeof pid) == sizeof pid);
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  REQUIRE(pidfd >= 0);

  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);

  pollfd ended{pidfd, POLLIN, 0};
  CHECK(::poll(&ended, 1, 10'000) == 1);
  for (int fd : {pidfd, report[0], report[1]}) ::close(fd);
}

TEST_CASE("a program is found on the search path, and a folder of that name is not it", "[child]") {
  int error_number = 0;
  CHECK(find_program("sh", "/no/such:/bin", error_number) == "/bin/sh");
  CHECK(find_program("/bin/sh", "", error_number) == "/bin/sh");
  CHECK(find_program("bin", "/:/usr", error_number).empty());
  CHECK(error_number == EACCES);
  CHECK(find_program("", "/bin", error_number).empty());
  CHECK(error_number == ENOENT);
}

TEST_CASE("a program is found where there is no PATH, and not where that is empty", "[child]") {
  ChildSetup setup = setup_of({"sh", "-c", "exit 3"});
  setup.environment = {"SENTINEL=here"};
  auto child = start(setup);
  REQUIRE(child);
  CHECK(wait_for(*child).exit_code == 3);
  setup.environment = {"PATH="};
  CHECK_FALSE(start(setup));
}

TEST_CASE("descendants are found through any number of parents", "[child]") {
  const auto row = [](int pid, int parent) {
    ProcessRow result;
    result.pid = pid;
    result.parent = parent;
    return result;
  };
  const std::vector<ProcessRow> table = {row(5, 1), row(6, 5), row(9, 6), row(7, 1), row(8, 7)};
  std::vector<int> found;
  for (const ProcessRow& member : with_descendants(table, {5, 42})) found.push_back(member.pid);
  std::sort(found.begin(), found.end());
  CHECK(found == std::vector<int>{5, 6, 9});
}
