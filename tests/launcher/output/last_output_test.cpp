// What is still to be written when the job is over: readers that are slow, gone, or given up.
#include "launcher/output/last_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include "rendezvous/unique_fd.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::testing::patience;

namespace {

// stdout is a pipe that holds more than it takes, stderr one with room.
struct Readers {
  explicit Readers(LastOutputLimits limits, bool one_console = false) {
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(err, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(worker, O_CLOEXEC) == 0);
    for (int* ends : {out, err}) ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    output = std::make_unique<OutputForwarder>(io, out[1], one_console ? out[1] : err[1]);
    rest = std::make_unique<LastOutput>(io, *output, limits);
    stream = output->add(WorkerOutput{}, ddprun::rendezvous::UniqueFd(worker[0]), {});
    for (int lines = 0; lines < 20; ++lines) {
      const std::string line(9'999, 'x');
      REQUIRE(::write(worker[1], (line + '\n').data(), 10'000) == 10'000);
      io.restart();
      io.poll();
    }
    REQUIRE(output->pending_bytes() > 0);
  }
  ~Readers() {
    output->drop_pending();
    for (int* ends : {out, err}) {
      ::close(ends[0]);
      ::close(ends[1]);
    }
    ::close(worker[1]);
  }

  void wait(const std::string& log_folder = "") {
    rest->wait(
        log_folder, [this] { done = true; }, [this](std::size_t bytes) { dropped = bytes; });
  }
  void poll() {
    io.restart();
    io.poll();
  }
  // Runs the loop until the wait is over.
  void run() {
    io.restart();
    while (!done && io.run_one_for(patience(20s)) > 0) {
    }
  }
  static std::string read(int fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<std::size_t>(n));
    }
    return text;
  }

  asio::io_context io;
  int out[2], err[2], worker[2];
  std::unique_ptr<OutputForwarder> output;
  std::unique_ptr<LastOutput> rest;
  std::shared_ptr<OutputForwarder::Stream> stream;
  bool done = false;
  std::size_t dropped = 0;
};

// What a process that is started without any terminal finds behind /dev/tty once it has opened
// slave().
class Terminal {
 public:
  Terminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    REQUIRE(master_ >= 0);
    REQUIRE(::grantpt(master_) == 0);
    REQUIRE(::unlockpt(master_) == 0);
  }
  ~Terminal() { ::close(master_); }
  std::string slave() const { return ::ptsname(master_); }
  // Until `text` is there, or nobody has the terminal any more.
  std::string read_until(const std::string& text) const {
    std::string all;
    pollfd readable{master_, POLLIN, 0};
    char buffer[4096];
    while (all.find(text) == std::string::npos &&
           ::poll(&readable, 1, static_cast<int>(patience(20s).count())) == 1) {
      const ssize_t n = ::read(master_, buffer, sizeof buffer);
      if (n <= 0) break;
      all.append(buffer, static_cast<std::size_t>(n));
    }
    return all;
  }

 private:
  int master_;
};

constexpr LastOutputLimits patient{1h, 1h};

}  // namespace

TEST_CASE("a signal from outside, or a second one from the keyboard, ends the patience",
          "[output][last]") {
  CHECK_FALSE(end_patience({}));
  CHECK_FALSE(end_patience({SIGINT}));
  CHECK_FALSE(end_patience({SIGQUIT}));
  CHECK(end_patience({SIGINT, SIGINT}));
  CHECK(end_patience({SIGINT, SIGQUIT}));
  CHECK(end_patience({SIGTERM}));
  CHECK(end_patience({SIGINT, SIGHUP}));
}

TEST_CASE("a reader that is slow gets everything", "[output][last]") {
  Readers readers(patient);
  readers.wait();
  readers.poll();
  CHECK_FALSE(readers.done);

  std::string text;
  while (!readers.done) {
    pollfd readable{readers.out[0], POLLIN, 0};
    if (!readers.done && readers.output->pending_bytes() > 0) {
      REQUIRE(::poll(&readable, 1, static_cast<int>(patience(20s).count())) == 1);
    }
    text += Readers::read(readers.out[0]);
    readers.poll();
  }
  text += Readers::read(readers.out[0]);
  CHECK(text.size() == 200'000);
}

TEST_CASE("a reader that is gone ends the wait at once", "[output][last]") {
  Readers readers(patient);
  readers.wait();
  ::close(readers.out[0]);
  readers.out[0] = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  readers.run();
  CHECK(readers.done);
}

TEST_CASE("whoever wants an end leaves the readers some time", "[output][last]") {
  Readers readers(patient);
  readers.rest->signal_received(SIGTERM);
  readers.wait();
  readers.poll();
  CHECK_FALSE(readers.done);
}

TEST_CASE("a console that is stuck is not told what is waited for", "[output][last]") {
  Readers readers({0ms, 1h}, /*one_console=*/true);
  const std::size_t pending = readers.output->pending_bytes();
  readers.wait();
  readers.poll();
  CHECK(readers.output->pending_bytes() == pending);
}

TEST_CASE("stderr says what is waited for when it is another console", "[output][last]") {
  Readers readers({0ms, 1h});
  const std::size_t pending = readers.output->pending_bytes();
  readers.wait();
  pollfd readable{readers.err[0], POLLIN, 0};
  const auto limit = std::chrono::steady_clock::now() + patience(20s);
  while (::poll(&readable, 1, 1) == 0 && std::chrono::steady_clock::now() < limit) readers.poll();
  CHECK(Readers::read(readers.err[0]) ==
        "[ddprun] the job is over; " + std::to_string(pending) +
            " bytes of its output wait for whoever reads stdout (SIGTERM, or Ctrl-C twice, drops "
            "them)\n");
  CHECK_FALSE(readers.done);
}

TEST_CASE("whoever wants an end is told how much was dropped and where it is", "[output][last]") {
  Readers readers({1h, 0ms});
  const std::size_t pending = readers.output->pending_bytes();
  SECTION("SIGTERM while the readers are waited for") {
    readers.wait("/logs/run/attempt_0");
    readers.poll();
    REQUIRE_FALSE(readers.done);
    readers.rest->signal_received(SIGTERM);
  }
  SECTION("Ctrl-C during the job, and once more now") {
    readers.rest->signal_received(SIGINT);
    readers.wait("/logs/run/attempt_0");
    readers.poll();
    REQUIRE_FALSE(readers.done);
    readers.rest->signal_received(SIGINT);
  }
  SECTION("Ctrl-C now, which may have been meant for the reader, and once more") {
    readers.wait("/logs/run/attempt_0");
    readers.rest->signal_received(SIGINT);
    readers.poll();
    REQUIRE_FALSE(readers.done);
    readers.rest->signal_received(SIGINT);
  }
  SECTION("SIGTERM was what ended the job") {
    readers.rest->signal_received(SIGTERM);
    readers.wait("/logs/run/attempt_0");
  }
  readers.run();

  CHECK(readers.done);
  CHECK(readers.dropped == pending);
  CHECK(readers.output->pending_bytes() == 0);
  CHECK(Readers::read(readers.err[0]) == "[ddprun] dropped " + std::to_string(pending) +
                                             " bytes of output that nobody read within 0 s; the "
                                             "workers' part is in /logs/run/attempt_0\n");
}

TEST_CASE("a log file that takes nothing is waited for, and told of when it is given up",
          "[output][last]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "stdout.log";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  Readers readers({0ms, 0ms});
  readers.output->drop_pending();
  WorkerOutput worker;
  worker.out = {false, path};
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const auto stream = readers.output->add(worker, ddprun::rendezvous::UniqueFd(ends[0]), {});
  for (int i = 0; i < 20; ++i) {
    const std::string bytes(10'000, 'x');
    REQUIRE(::write(ends[1], bytes.data(), bytes.size()) == 10'000);
    readers.poll();
  }
  ::close(ends[1]);
  readers.output->drain(*stream);

  readers.wait("/logs/run");
  std::string told;
  const auto limit = std::chrono::steady_clock::now() + patience(20s);
  while (told.empty() && std::chrono::steady_clock::now() < limit) {
    readers.poll();
    told = Readers::read(readers.err[0]);
  }
  CHECK(told.find("bytes of its output wait for a file system that takes nothing") != told.npos);
  CHECK_FALSE(readers.done);
  const std::string pending = std::to_string(readers.output->pending().logs);
  readers.rest->signal_received(SIGTERM);
  readers.run();

  CHECK(readers.done);
  CHECK(std::to_string(readers.dropped) == pending);
  CHECK(Readers::read(readers.err[0]) ==
        "[ddprun] dropped " + pending + " bytes of output that no file system took within 0 s; " +
            pending + " of them are missing in log files in /logs/run\n");
  ::close(reader);
}

TEST_CASE("a stuck console for both is no reason to wait longer", "[output][last]") {
  Readers readers({0ms, 0ms}, /*one_console=*/true);
  readers.rest->signal_received(SIGTERM);
  readers.wait();
  readers.run();
  CHECK(readers.done);
  CHECK(readers.output->pending_bytes() == 0);
}

TEST_CASE("14.1: the terminal is told what was dropped where both consoles are stuck",
          "[output][last]") {
  const Terminal terminal;
  const std::string slave = terminal.slave();
  const pid_t pid = ::fork();
  if (pid == 0) {
    // The first terminal that the leader of a new session opens becomes the session's.
    ::setsid();
    if (::open(slave.c_str(), O_RDWR | O_CLOEXEC) < 0) ::_exit(2);
    bool told = false;
    try {
      Readers readers({1h, 0ms}, /*one_console=*/true);
      const std::size_t pending = readers.output->pending_bytes();
      readers.rest->signal_received(SIGTERM);
      readers.wait("/logs/run/attempt_0");
      readers.run();
      told = readers.done && readers.dropped == pending;
    } catch (...) {
    }
    ::_exit(told ? 0 : 1);
  }
  REQUIRE(pid > 0);

  const std::string said = terminal.read_until("attempt_0");
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);

  INFO(said);
  CHECK(status == 0);
  CHECK(said.find("\n[ddprun] dropped ") != std::string::npos);
  CHECK(said.find(" bytes of output that nobody read within 0 s; the workers' part is in "
                  "/logs/run/attempt_0") != std::string::npos);
}
