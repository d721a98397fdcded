// The agent with real workers: each agent runs in a process of its own, forked from the test.
#include "launcher/agent.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/write.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "rendezvous/control/first_cause.h"
#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"
#include "tests/testing/held_signals.h"
#include "tests/testing/patience.h"
#include "tests/testing/process.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::testing::check_contains;
using ddprun::testing::content_of;
using namespace std::chrono_literals;
namespace exit_status = ddprun::rendezvous::exit_status;
namespace fs = std::filesystem;

namespace {

struct Scratch {
  std::string file(const std::string& name) const { return folder / name; }
  ddprun::testing::TemporaryFolder folder;
  const std::string path = folder.path();
};

LaunchOptions shell(const std::string& script, int workers = 2) {
  LaunchOptions options;
  options.nproc_per_node = options.nproc_min = workers;
  options.endpoint_port = 0;
  options.program = {"/bin/sh", "-c", script};
  options.first_argument = 3;  // The script is not ours to substitute in.
  options.program_name = "script";
  options.shutdown_timeout = 5s;
  options.join_timeout = 30s;
  options.signals_to_handle = {SIGTERM, SIGINT};
  return options;
}

// run_agent() in a child process, with its stdout and stderr in files.
class AgentProcess {
 public:
  AgentProcess(const Scratch& scratch, const LaunchOptions& options,
               const std::string& name = "agent")
      : out_(scratch.file(name + ".out")), err_(scratch.file(name + ".err")) {
    std::fflush(stdout);  // TSan's _exit() would write it again: the cases' names, as output.
    pid_ = fork();
    if (pid_ != 0) return;
    setenv("TMPDIR", scratch.path.c_str(), 1);
    dup2(open(out_.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600), STDOUT_FILENO);
    dup2(open(err_.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600), STDERR_FILENO);
    _exit(run_agent(options));
  }
  ~AgentProcess() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  AgentProcess(const AgentProcess&) = delete;

  int wait() {
    int status = 0;
    const auto end = std::chrono::steady_clock::now() + ddprun::testing::patience(40s);
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) return -1;
      std::this_thread::sleep_for(1ms);
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  pid_t pid() const { return pid_; }
  void send(int signal) const { kill(pid_, signal); }
  std::string out() const { return content_of(out_); }
  std::string err() const { return content_of(err_); }

 private:
  std::string out_;
  std::string err_;
  pid_t pid_ = -1;
};

template <class Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + ddprun::testing::patience(20s);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

LaunchOptions node(int rank, int port, const std::string& script) {
  LaunchOptions options = shell(script, 1);
  options.nnodes_min = options.nnodes_max = 2;
  options.node_rank = rank;
  options.endpoint_port = static_cast<std::uint16_t>(port);
  return options;
}

}  // namespace

TEST_CASE("workers that succeed end the agent with 0 and leave nothing behind",
          "[launcher][agent]") {
  const Scratch scratch;
  AgentProcess agent(scratch,
                     shell("echo $RANK of $WORLD_SIZE at $MASTER_ADDR; test -n \"$MASTER_PORT\""));

  CHECK(agent.wait() == 0);

  check_contains(agent.out(), "0 of 2 at 127.0.0.1\n");
  check_contains(agent.out(), "1 of 2 at 127.0.0.1\n");
  CHECK(agent.err().empty());
  for (const auto& entry : fs::directory_iterator(scratch.path)) {
    CHECK(entry.path().filename().string().rfind("agent", 0) == 0);
  }
}

TEST_CASE("a failing worker's exit code, output and error file reach the user",
          "[launcher][agent]") {
  const Scratch scratch;
  AgentProcess agent(scratch,
                     shell("test $RANK = 0 && exec sleep 30\n"
                           "echo '{\"message\": \"out of cheese\"}' > $TORCHELASTIC_ERROR_FILE\n"
                           "echo last words >&2; exit 42"));

  CHECK(agent.wait() == 42);

  check_contains(agent.err(), "script FAILED: rank 1 (pid ");
  check_contains(agent.err(), "out of cheese");
  check_contains(agent.err(), "    last words\n");
  check_contains(agent.err(), "rank 0 (local rank 0, pid ");
  check_contains(agent.err(), "stopped (killed by SIGTERM");
}

TEST_CASE("a killed worker is restarted with the next attempt's number", "[launcher][agent]") {
  const Scratch scratch;
  LaunchOptions options = shell(
      "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then [ $RANK = 1 ] && kill -9 $$; exec sleep 30; "
      "fi\n"
      "echo rank $RANK attempt $TORCHELASTIC_RESTART_COUNT");
  options.max_restarts = 1;
  AgentProcess agent(scratch, options);

  CHECK(agent.wait() == 0);

  check_contains(agent.out(), "rank 0 attempt 1\n");
  check_contains(agent.err(), "was killed by SIGKILL");
  check_contains(agent.err(), "restarting (0 of 1 restarts left)");
}

TEST_CASE("a program that does not exist is named and not tried again", "[launcher][agent]") {
  const Scratch scratch;
  LaunchOptions options = shell("");
  options.program = {"/no/such/program"};
  options.first_argument = 1;
  options.max_restarts = 3;
  AgentProcess agent(scratch, options);

  CHECK(agent.wait() == 127);
  check_contains(agent.err(), "'/no/such/program': No such file or directory");
  check_contains(agent.err(), "started 1");
}

TEST_CASE("workers may save their work after SIGTERM, and the agent ends with 75",
          "[launcher][agent]") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  const Scratch scratch;
  AgentProcess agent(scratch,
                     shell("trap 'echo saved; exit 0' TERM; echo ready; sleep 30 & wait", 1));
  REQUIRE(eventually([&] { return agent.out() == "ready\n"; }));

  agent.send(SIGTERM);

  CHECK(agent.wait() == exit_status::preempted);
  CHECK(agent.out() == "ready\nsaved\n");
}

TEST_CASE("a job under nohup outlives its terminal", "[launcher][agent]") {
  const Scratch scratch;
  LaunchOptions options = shell("echo ready; until [ -e go ]; do sleep 0.05; done", 1);
  options.program[2] = "cd " + scratch.path + "; " + options.program[2];
  options.signals_to_handle.push_back(SIGHUP);
  const auto before = std::signal(SIGHUP, SIG_IGN);  // As nohup leaves it.
  AgentProcess agent(scratch, options);
  std::signal(SIGHUP, before);
  REQUIRE(eventually([&] { return agent.out() == "ready\n"; }));

  agent.send(SIGHUP);
  std::ofstream(scratch.file("go")) << "go";

  CHECK(agent.wait() == 0);
}

TEST_CASE("a second Ctrl-C kills workers that ignore the first", "[launcher][agent]") {
  DDPRUN_SKIP_IF_SIGNALS_ARE_HELD();
  const Scratch scratch;
  LaunchOptions options = shell("trap 'echo again' INT; echo ready; while :; do sleep 1; done", 1);
  options.shutdown_timeout = 60s;
  AgentProcess agent(scratch, options);
  REQUIRE(eventually([&] { return agent.out() == "ready\n"; }));

  agent.send(SIGINT);
  REQUIRE(eventually([&] { return agent.out() == "ready\nagain\n"; }));
  agent.send(SIGINT);

  CHECK(agent.wait() == 130);
}

TEST_CASE("a failure on one node restarts the workers of both together", "[launcher][agent]") {
  const Scratch scratch;
  const int port = ddprun::testing::free_port();
  const std::string script =
      "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then [ $RANK = 1 ] && exit 3; exec sleep 30; fi\n"
      "echo rank $RANK attempt $TORCHELASTIC_RESTART_COUNT";
  LaunchOptions options[] = {node(0, port, script), node(1, port, script)};
  for (LaunchOptions& o : options) o.max_restarts = 1;

  AgentProcess second(scratch, options[1], "second");
  AgentProcess first(scratch, options[0], "first");

  CHECK(first.wait() == 0);
  CHECK(second.wait() == 0);
  CHECK(first.out() == "rank 0 attempt 1\n");
  CHECK(second.out() == "rank 1 attempt 1\n");
}

TEST_CASE("both nodes end with the same cause and exit code", "[launcher][agent]") {
  const Scratch scratch;
  const int port = ddprun::testing::free_port();
  const std::string script = "[ $RANK = 1 ] && kill -SEGV $$; exec sleep 30";

  AgentProcess first(scratch, node(0, port, script), "first");
  AgentProcess second(scratch, node(1, port, script), "second");

  CHECK(first.wait() == 128 + SIGSEGV);
  CHECK(second.wait() == 128 + SIGSEGV);
  check_contains(first.err(), "script FAILED: rank 1 (pid ");
  check_contains(second.err(), "script FAILED: rank 1 (pid ");
}

TEST_CASE("when an agent is killed the other one ends with the cause named", "[launcher][agent]") {
  const Scratch scratch;
  const int port = ddprun::testing::free_port();
  AgentProcess first(scratch, node(0, port, "echo up; exec sleep 30"), "first");
  AgentProcess second(scratch, node(1, port, "echo up; exec sleep 30"), "second");
  REQUIRE(eventually([&] { return first.out() == "up\n" && second.out() == "up\n"; }));

  SECTION("the one that joined") {
    second.send(SIGKILL);
    CHECK(first.wait() == exit_status::node_lost);
    // The kernel resets the connection of a process that had not read all it was sent.
    const std::string said = first.err();
    INFO(said);
    CHECK((said.find("was lost: it closed the connection") != std::string::npos ||
           said.find("was lost: the connection broke: Connection reset") != std::string::npos));
    check_contains(said, "\n  advice      look at that node: ");
    check_contains(said, "with --max-restarts");
  }
  SECTION("the one with the endpoint") {
    first.send(SIGKILL);
    CHECK(second.wait() == exit_status::coordinator_lost);
    check_contains(second.err(),
                   "lost the coordinator, node 0 at 127.0.0.1:" + std::to_string(port));
  }
}

TEST_CASE("who has met no coordinator has not lost it", "[launcher][agent]") {
  const Scratch scratch;
  asio::io_context io;
  asio::ip::tcp::acceptor web_server(io, {asio::ip::address_v4::loopback(), 0});
  const int port = web_server.local_endpoint().port();
  AgentProcess agent(scratch, node(1, port, "true"), "agent");

  asio::ip::tcp::socket visitor = web_server.accept();
  asio::write(visitor, asio::buffer(std::string("HTTP/1.1 400 Bad Request\r\n\r\n")));

  CHECK(agent.wait() == exit_status::coordinator_lost);
  check_contains(agent.err(), "cannot join the job of node 0 at 127.0.0.1:" + std::to_string(port));
  CHECK(agent.err().find("lost the coordinator") == std::string::npos);
}

TEST_CASE("a node of another job is refused", "[launcher][agent]") {
  const Scratch scratch;
  const int port = ddprun::testing::free_port();
  AgentProcess first(scratch, node(0, port, "true"), "first");
  LaunchOptions other = node(1, port, "true");
  other.run_id = "another";

  AgentProcess second(scratch, other, "second");

  CHECK(second.wait() == exit_status::refused);
  check_contains(second.err(), "serves another job than \"another\"");
  const auto has_said_so = [&] {  // It may still be writing.
    return first.err().find("asked for the job \"another\", this is \"none\"") != std::string::npos;
  };
  CHECK(eventually(has_said_so));
}

TEST_CASE("a port in use is named with its holder", "[launcher][agent]") {
  const Scratch scratch;
  asio::io_context io;
  const asio::ip::tcp::acceptor holder(io, {asio::ip::address_v4::loopback(), 0});

  AgentProcess agent(scratch, node(0, holder.local_endpoint().port(), "true"));

  // The agent is a fork, and has the socket, too: of two holders the lower number is found first.
  const std::string pid = std::to_string(std::min(getpid(), agent.pid()));
  CHECK(agent.wait() == exit_status::internal);
  check_contains(agent.err(), "port " + std::to_string(holder.local_endpoint().port()) +
                                  ": the port is in use by pid " + pid);
}

TEST_CASE("missing nodes end the wait with 71, Ctrl-C ends it at once", "[launcher][agent]") {
  const Scratch scratch;
  LaunchOptions options = node(0, ddprun::testing::free_port(), "true");
  SECTION("timeout") {
    options.join_timeout = 200ms;
    AgentProcess agent(scratch, options);
    CHECK(agent.wait() == exit_status::rendezvous_timeout);
    check_contains(agent.err(), "node 1 did not join");
  }
  SECTION("Ctrl-C") {
    AgentProcess agent(scratch, options);
    REQUIRE(
        eventually([&] { return agent.err().find("waiting for node 1") != std::string::npos; }));
    const auto start = std::chrono::steady_clock::now();
    agent.send(SIGINT);
    CHECK(agent.wait() == 130);
    CHECK(std::chrono::steady_clock::now() - start < ddprun::testing::patience(1s));
  }
}
