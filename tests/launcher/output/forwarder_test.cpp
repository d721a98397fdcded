// Worker output on its way to console and files: bytes through real pipes.
#include "launcher/output/forwarder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "launcher/output/lines.h"
#include "launcher/output/log.h"
#include "rendezvous/unique_fd.h"
#include "tests/testing/catch.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::rendezvous::UniqueFd;
using ddprun::testing::content_of;
using namespace std::chrono_literals;

namespace {

struct PipeEnds {
  int read = -1;
  int write = -1;
};
PipeEnds make_pipe() {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  return {ends[0], ends[1]};
}

void put(int fd, const std::string& text) {
  REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

// A forwarder whose console is a pipe that this test reads.
struct Setup {
  Setup()
      : console(make_pipe()),
        output(std::make_unique<OutputForwarder>(io, console.write, console.write)) {
    ::fcntl(console.read, F_SETFL, O_NONBLOCK);
  }
  ~Setup() {
    output.reset();
    ::close(console.read);
    ::close(console.write);
  }

  void poll() {
    io.restart();
    io.poll();
  }
  // What the console shows by now.
  std::string& shown() {
    poll();
    char buffer[65536];
    for (ssize_t n; (n = ::read(console.read, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<std::size_t>(n));
      poll();
    }
    return text;
  }
  std::shared_ptr<OutputForwarder::Stream> add(const std::string& prefix, int out_fd,
                                               int err_fd = -1) {
    WorkerOutput worker;
    worker.prefix = prefix;
    return output->add(worker, UniqueFd(out_fd), UniqueFd(err_fd));
  }

  asio::io_context io;
  PipeEnds console;
  std::unique_ptr<OutputForwarder> output;
  std::string text;
};

using Early = OutputLines::Early;
std::string lines_of(OutputLines& lines, const std::string& bytes, Early early = Early::Redraws) {
  std::string shown;
  lines.add(bytes, early, [&](std::string_view text) { shown += text; });
  return shown;
}

}  // namespace

TEST_CASE("half a line waits for its other half", "[output]") {
  OutputLines lines;
  CHECK(lines_of(lines, "one\ntw").empty() == false);
  CHECK(lines_of(lines, "o").empty());
  CHECK(lines_of(lines, "\nthree") == "two\n");
  CHECK(lines_of(lines, "").empty());
}

TEST_CASE("a line that is redrawn, endless or nobody else's is shown as it comes", "[output]") {
  OutputLines lines;
  CHECK(lines_of(lines, "\r 10%") == "\r 10%");
  CHECK(lines_of(lines, "line\r").empty());  // Perhaps half of "\r\n".
  CHECK(lines_of(lines, "\n") == "line\r\n");
  CHECK(lines_of(lines, "prompt: ", Early::All) == "prompt: ");
  CHECK(lines_of(lines, std::string(OutputLines::line_bytes_max, 'x')).size() ==
        OutputLines::line_bytes_max);
}

TEST_CASE("of a line that others must not see redrawn the last state is kept", "[output]") {
  OutputLines lines;
  CHECK(lines_of(lines, "\r 10%\r 20%", Early::Nothing).empty());
  CHECK(lines_of(lines, "\r 30%", Early::Nothing).empty());
  CHECK(lines_of(lines, "\r", Early::Nothing).empty());
  CHECK(lines_of(lines, "\nnext\n", Early::Nothing) == "\r 30%\r\nnext\n");
}

TEST_CASE("every cut of a stream shows the same bytes in the end", "[output]") {
  const std::string bytes("a\r\nb\0\xff\n\n\rx\ry\r\rz\nend", 20);
  for (std::size_t first = 0; first <= bytes.size(); ++first) {
    for (std::size_t second = first; second <= bytes.size(); ++second) {
      OutputLines lines;
      std::string shown = lines_of(lines, bytes.substr(0, first));
      shown += lines_of(lines, bytes.substr(first, second - first));
      shown += lines_of(lines, bytes.substr(second));
      lines.finish([&](std::string_view text) { shown += text; });
      REQUIRE(shown == bytes);
    }
  }
}

TEST_CASE("each line on the console has its worker's prefix", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe(), b = make_pipe();
  const auto one = setup.add("[0]: ", a.read);
  const auto two = setup.add("[1]: ", b.read);
  put(a.write, "x\n\ny");
  put(b.write, "z\n");
  CHECK(setup.shown().size() > 0);
  put(a.write, "y\n");
  ::close(a.write);
  ::close(b.write);

  const std::string text = setup.shown();
  CHECK(text.find("[0]: x\n[0]: \n") != std::string::npos);
  CHECK(text.find("[1]: z\n") != std::string::npos);
  CHECK(text.find("[0]: yy\n") != std::string::npos);
}

TEST_CASE("one stream of a worker may go without the prefix", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe(), b = make_pipe();
  WorkerOutput worker;
  worker.prefix = "[0]:";
  worker.out.prefixed = false;
  const auto stream = setup.output->add(worker, UniqueFd(a.read), UniqueFd(b.read));
  put(a.write, "out\n");
  setup.poll();
  put(b.write, "err\n");
  CHECK(setup.shown() == "out\n[0]:err\n");
  ::close(a.write);
  ::close(b.write);
}

TEST_CASE("a last line without an end is shown, and the next line is on its own", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe(), b = make_pipe();
  const auto one = setup.add("[0]:", a.read);
  const auto two = setup.add("[1]:", b.read);
  put(a.write, "no end");
  ::close(a.write);
  setup.poll();
  put(b.write, "next\n");
  ::close(b.write);

  CHECK(setup.shown() == "[0]:no end\n[1]:next\n");
}

TEST_CASE("a progress bar stays alive, and other lines do not write into it", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe();
  const auto one = setup.add("", a.read);
  put(a.write, "\r 10%");
  CHECK(setup.shown() == "\r 10%");
  setup.output->write_line("ddprun: hello");
  put(a.write, "\r 20%");
  CHECK(setup.shown() == "\r 10%\nddprun: hello\n\r 20%");
  put(a.write, "\n");
  ::close(a.write);
  CHECK(setup.shown() == "\r 10%\nddprun: hello\n\r 20%\n");
}

TEST_CASE("a prefixed progress bar keeps its prefix when it is redrawn", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe(), b = make_pipe();
  const auto one = setup.add("[0]:", a.read);
  const auto two = setup.add("[1]:", b.read);
  put(a.write, "\r 10%\r 20%");
  setup.poll();
  put(b.write, "line\r\n");
  setup.poll();
  put(a.write, "\r 30%\n");
  CHECK(setup.shown() == "\r[0]: 10%\r[0]: 20%\n[1]:line\r\n\r[0]: 30%\n");
  ::close(a.write);
  ::close(b.write);
}

TEST_CASE("a file gets exactly the worker's bytes", "[output]") {
  const std::string path = "/tmp/ddprun_output_" + std::to_string(::getpid()) + "/x/stdout.log";
  const std::string bytes = std::string("a\0b\r\n\xff\xfe half", 13) + "\n\n no end";
  {
    Setup setup;
    const PipeEnds a = make_pipe();
    WorkerOutput worker;
    worker.out = {true, path};
    worker.prefix = "[0]:";
    const auto stream = setup.output->add(worker, UniqueFd(a.read), {});
    put(a.write, bytes);
    ::close(a.write);
    setup.poll();
    CHECK(setup.shown().size() > bytes.size());
    CHECK(setup.output->flush(ddprun::testing::patience(20s)));
  }
  CHECK(content_of(path) == bytes);
  std::filesystem::remove_all(std::filesystem::path(path).parent_path().parent_path());
}

TEST_CASE("lines that several workers filter into one file are rotated as their logs are",
          "[output]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "filtered_stdout.log";
  std::string line(99, 'x');
  line += '\n';
  {
    Setup setup;
    const PipeEnds pipes[] = {make_pipe(), make_pipe()};
    std::vector<std::shared_ptr<OutputForwarder::Stream>> streams;
    for (const PipeEnds& pipe : pipes) {
      WorkerOutput worker;
      worker.out.console = false;
      worker.out.rotation = {.bytes_max = 1'000, .keep = 2};
      worker.out.filtered_file = path;
      worker.out.filters = {"x"};
      streams.push_back(setup.output->add(worker, UniqueFd(pipe.read), {}));
    }
    for (int i = 0; i < 50; ++i) {
      for (const PipeEnds& pipe : pipes) put(pipe.write, line);
      setup.poll();
    }
    for (const PipeEnds& pipe : pipes) ::close(pipe.write);
    setup.poll();
    CHECK(setup.output->flush(ddprun::testing::patience(20s)));
  }
  CHECK(full_logs(path) == std::vector<int>{8, 9});
  CHECK(content_of(path).size() == 1'000);
}

TEST_CASE("50 MB arrive byte for byte through a slow reader", "[output]") {
  constexpr std::size_t bytes_sent = 50 << 20;
  std::string sent;
  sent.reserve(bytes_sent + 32);
  for (std::size_t i = 0; sent.size() < bytes_sent; ++i)
    sent += "line " + std::to_string(i * i) + "\n";
  Setup setup;
  const PipeEnds a = make_pipe();
  const auto stream = setup.add("", a.read);
  std::thread writer([&] {
    for (std::size_t at = 0; at < sent.size();) {
      const ssize_t n =
          ::write(a.write, sent.data() + at, std::min<std::size_t>(sent.size() - at, 100'000));
      if (n > 0) at += static_cast<std::size_t>(n);
    }
    ::close(a.write);
  });
  // Reads less at a time than comes in, so the forwarder has to hold back.
  std::string received;
  received.reserve(sent.size());
  char buffer[30'000];
  const auto limit = std::chrono::steady_clock::now() + ddprun::testing::patience(40s);
  while (received.size() < sent.size() && std::chrono::steady_clock::now() < limit) {
    setup.io.restart();
    setup.io.poll_one();
    pollfd readable{setup.console.read, POLLIN, 0};
    if (::poll(&readable, 1, 0) != 1) continue;
    const ssize_t n = ::read(setup.console.read, buffer, sizeof buffer);
    if (n > 0) received.append(buffer, static_cast<std::size_t>(n));
  }
  writer.join();
  CHECK(received == sent);
}

TEST_CASE("a console that nobody reads stops the worker's pipe, not the loop", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe();
  const auto stream = setup.add("[0]:", a.read);
  ::fcntl(a.write, F_SETFL, O_NONBLOCK);
  const std::string line = std::string(10'000, 'x') + "\n";
  std::size_t written = 0;  // Letters 'x'.
  for (int full_in_a_row = 0; full_in_a_row < 10;) {
    const ssize_t n = ::write(a.write, line.data(), line.size());
    if (n > 0) written += std::min<std::size_t>(static_cast<std::size_t>(n), 10'000);
    full_in_a_row = n < 0 ? full_in_a_row + 1 : 0;
    setup.poll();
    REQUIRE(written < (8u << 20));  // It must come to a stop.
  }
  bool alive = false;
  asio::post(setup.io, [&] { alive = true; });
  setup.poll();
  CHECK(alive);

  // The reader comes back: everything is there.
  ::close(a.write);
  const auto received = [&] {
    const std::string& text = setup.shown();
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), 'x'));
  };
  const auto limit = std::chrono::steady_clock::now() + ddprun::testing::patience(20s);
  while (received() < written && std::chrono::steady_clock::now() < limit) {
  }
  CHECK(received() == written);
}

TEST_CASE("two chatty workers never mix within a line", "[output]") {
  Setup setup;
  std::array<PipeEnds, 2> pipes = {make_pipe(), make_pipe()};
  std::vector<std::shared_ptr<OutputForwarder::Stream>> streams;
  std::vector<std::thread> writers;
  constexpr int lines_sent = 20'000;
  for (int rank = 0; rank < 2; ++rank) {
    streams.push_back(
        setup.add("[" + std::to_string(rank) + "]:", pipes[static_cast<std::size_t>(rank)].read));
  }
  for (int rank = 0; rank < 2; ++rank) {
    writers.emplace_back([fd = pipes[static_cast<std::size_t>(rank)].write, rank] {
      std::string bytes;
      for (int i = 0; i < lines_sent; ++i) {
        bytes +=
            std::string(static_cast<std::size_t>(i % 200), static_cast<char>('a' + rank)) + "\n";
      }
      for (std::size_t at = 0; at < bytes.size();) {  // In pieces that cut lines.
        const ssize_t n =
            ::write(fd, bytes.data() + at, std::min<std::size_t>(777, bytes.size() - at));
        if (n > 0) at += static_cast<std::size_t>(n);
      }
      ::close(fd);
    });
  }
  std::size_t lines = 0;
  const auto limit = std::chrono::steady_clock::now() + ddprun::testing::patience(40s);
  while (lines < 2 * lines_sent && std::chrono::steady_clock::now() < limit) {
    const std::string& text = setup.shown();
    lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  for (std::thread& writer : writers) writer.join();
  REQUIRE(lines == 2 * lines_sent);
  std::array<int, 2> next = {0, 0};
  std::size_t wrong = 0;
  for (std::size_t at = 0; at < setup.text.size();) {
    const std::size_t end = setup.text.find('\n', at);
    const std::string line = setup.text.substr(at, end - at);
    const int rank = line.size() > 1 && line[1] == '1';
    int& count = next[static_cast<std::size_t>(rank)];
    const std::string expected =
        "[" + std::to_string(rank) +
        "]:" + std::string(static_cast<std::size_t>(count % 200), static_cast<char>('a' + rank));
    wrong += line != expected;
    ++count;
    at = end + 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("long lines in pieces, with any bytes, do not mix with others", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe(), b = make_pipe();
  const auto one = setup.add("[0]:", a.read), two = setup.add("[1]:", b.read);
  std::string odd = std::string("\0\xff\xc3\x28\x80", 5), long_line;
  while (long_line.size() < 600'000) long_line += odd + "0123456789";
  std::string expected;
  std::string& text = setup.shown();
  for (std::size_t at = 0; at < long_line.size(); at += 30'000) {
    put(a.write, long_line.substr(at, 30'000));
    put(b.write, odd + "\n");
    setup.shown();
    expected += "[1]:" + odd + "\n";
  }
  CHECK(text == expected);
  put(a.write, "\n");
  CHECK((setup.shown() == expected + "[0]:" + long_line + "\n"));
  ::close(a.write);
  ::close(b.write);
}

TEST_CASE("a line beyond the limit is shown in pieces and loses nothing", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe();
  const auto one = setup.add("[0]:", a.read);
  for (int i = 0; i < 80; ++i) {
    put(a.write, std::string(30'000, 'x'));
    setup.shown();
  }
  const auto count = [&] { return std::count(setup.text.begin(), setup.text.end(), 'x'); };
  CHECK(count() >= 1'200'000);  // Not kept for ever.
  ::close(a.write);
  setup.shown();
  CHECK(count() == 2'400'000);
  CHECK(std::count(setup.text.begin(), setup.text.end(), '[') == 1);
}

TEST_CASE("what one worker has begun to write waits where there is another", "[output]") {
  Setup setup;
  const PipeEnds first = make_pipe(), second = make_pipe();
  const auto one = setup.add("", first.read);
  put(first.write, "one");
  CHECK(setup.shown() == "one");
  const auto other = setup.add("", second.read);
  put(first.write, "!\n1");
  put(second.write, "two\n");
  setup.shown();
  put(first.write, "\n");
  CHECK(setup.shown() == "one!\ntwo\n1\n");
  ::close(first.write);
  ::close(second.write);
}

TEST_CASE("drain takes all that a pipe holds", "[output]") {
  const ddprun::testing::TemporaryFolder folder;
  Setup setup;
  const PipeEnds pipe = make_pipe();
  const int bytes = ::fcntl(pipe.write, F_SETPIPE_SZ, 1 << 20);
  if (bytes != 1 << 20) DDPRUN_SKIP("no pipe of 1 MiB here");
  WorkerOutput worker;
  worker.out = {false, folder / "log"};
  const auto stream = setup.output->add(worker, UniqueFd(pipe.read), {});
  put(pipe.write, std::string(static_cast<std::size_t>(bytes), 'x'));
  setup.output->drain(*stream);
  CHECK(setup.output->flush(20s));
  CHECK(content_of(folder / "log").size() == static_cast<std::size_t>(bytes));
  ::close(pipe.write);
}

TEST_CASE("drain does not wait for a pipe that somebody holds open", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe(), b = make_pipe();
  const auto stream = setup.add("[0]:", a.read, b.read);
  put(a.write, "out\nrest");
  put(b.write, "err\n");

  setup.output->drain(*stream);

  const std::string text = setup.shown();
  CHECK(text.find("[0]:out\n") != std::string::npos);
  CHECK(text.find("rest") != std::string::npos);
  CHECK(OutputForwarder::last_stderr(*stream) == "err");
  ::close(a.write);
  ::close(b.write);
}

TEST_CASE("the last lines of stderr are kept, redrawn lines as one sees them", "[output]") {
  Setup setup;
  const PipeEnds b = make_pipe();
  const auto stream = setup.add("", -1, b.read);
  for (int i = 0; i < 1000; ++i) put(b.write, "line " + std::to_string(i) + "\n");
  setup.shown();
  put(b.write, "\r 10%\r 20%\nlast");
  setup.shown();
  CHECK(OutputForwarder::last_stderr(*stream, 3) == "line 999\n 20%\nlast");
  put(b.write, std::string(50'000, 'x'));
  setup.shown();
  CHECK(OutputForwarder::last_stderr(*stream).size() <= 8192);
  ::close(b.write);
}

TEST_CASE("the console's own flags are left alone", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe();
  const auto stream = setup.add("", a.read);
  for (int i = 0; i < 100; ++i) {  // Until it blocks.
    put(a.write, std::string(4000, 'x') + "\n");
    setup.poll();
  }
  CHECK((::fcntl(setup.console.write, F_GETFL) & O_NONBLOCK) == 0);
  setup.shown();
  ::close(a.write);
}

TEST_CASE("a console that was closed loses the text, and the file goes on", "[output]") {
  const std::string path = "/tmp/ddprun_output_" + std::to_string(::getpid()) + ".log";
  Setup setup;
  ::close(setup.console.read);
  setup.console.read = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const PipeEnds a = make_pipe();
  WorkerOutput worker;
  worker.out = {true, path};
  const auto stream = setup.output->add(worker, UniqueFd(a.read), {});
  put(a.write, "one\n");
  setup.poll();
  put(a.write, "two\n");
  setup.poll();
  ::close(a.write);
  setup.poll();
  CHECK(setup.output->flush(ddprun::testing::patience(20s)));
  CHECK(content_of(path) == "one\ntwo\n");
  ::unlink(path.c_str());
}

TEST_CASE("a socket works as the console", "[output]") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  std::string received;
  {
    asio::io_context io;
    OutputForwarder output(io, ends[1], ends[1]);
    for (int i = 0; i < 20'000; ++i) output.write_line(std::string(40, 'x'));
    char buffer[65536];
    const auto limit = std::chrono::steady_clock::now() + ddprun::testing::patience(20s);
    while (received.size() < 20'000 * 41 && std::chrono::steady_clock::now() < limit) {
      const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
      if (n > 0) received.append(buffer, static_cast<std::size_t>(n));
      io.restart();
      io.poll();
    }
    CHECK((::fcntl(ends[1], F_GETFL) & O_NONBLOCK) == 0);
  }
  CHECK(received.size() == 20'000 * 41);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a full disk is told once and does not stop the worker", "[output]") {
  if (::access("/dev/full", W_OK) != 0) DDPRUN_SKIP("there is no /dev/full");
  Setup setup;
  const PipeEnds a = make_pipe();
  WorkerOutput worker;
  worker.out = {true, "/dev/full"};
  const auto stream = setup.output->add(worker, UniqueFd(a.read), {});
  put(a.write, "one\n");
  setup.shown();
  CHECK(setup.output->flush(ddprun::testing::patience(20s)));
  setup.shown();
  put(a.write, "two\n");
  const std::string text = setup.shown();
  CHECK(text.find("one\n") != std::string::npos);
  CHECK(text.find("two\n") != std::string::npos);
  CHECK(text.find("/dev/full: No space left") == text.rfind("/dev/full: No space left"));
  CHECK(text.find("/dev/full: No space left") != std::string::npos);
  ::close(a.write);
}

TEST_CASE("a file that takes nothing stops the worker's pipe, not the loop", "[output]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string path = folder / "stdout.log";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  Setup setup;
  const PipeEnds a = make_pipe(), b = make_pipe();
  WorkerOutput worker;
  worker.out = {false, path};
  const auto stream = setup.output->add(worker, UniqueFd(a.read), UniqueFd(b.read));
  ::fcntl(a.write, F_SETFL, O_NONBLOCK);
  const std::string piece(10'000, 'x');
  std::size_t written = 0;
  for (int full_in_a_row = 0; full_in_a_row < 10;) {
    const ssize_t n = ::write(a.write, piece.data(), piece.size());
    if (n > 0) written += static_cast<std::size_t>(n);
    full_in_a_row = n < 0 ? full_in_a_row + 1 : 0;
    setup.poll();
    REQUIRE(written < (8u << 20));  // It must come to a stop.
  }
  put(b.write, "the loop goes on\n");
  CHECK(setup.shown() == "the loop goes on\n");
  CHECK(setup.output->pending().logs > 0);
  CHECK_FALSE(setup.output->flush(0ms));

  // The reader comes back: everything is there, though the worker has ended meanwhile.
  ::close(a.write);
  std::size_t received = 0;
  bool done = false;
  char buffer[65536];
  const auto limit = std::chrono::steady_clock::now() + ddprun::testing::patience(20s);
  while (received < written && std::chrono::steady_clock::now() < limit) {
    const ssize_t n = ::read(reader, buffer, sizeof buffer);
    if (n > 0) received += static_cast<std::size_t>(n);
    setup.poll();
  }
  CHECK(received == written);
  setup.output->when_written([&] { done = true; });
  while (!done && std::chrono::steady_clock::now() < limit) {
    setup.io.restart();
    setup.io.run_one_for(1s);
  }
  CHECK(done);
  CHECK(setup.output->pending_bytes() == 0);
  ::close(b.write);
  ::close(reader);
}

TEST_CASE("streams that cannot be watched are closed", "[output]") {
  Setup setup;
  const PipeEnds a = make_pipe(), b = make_pipe();
  bool refused = false;
  const bool tried = ddprun::testing::with_failing_calls({{__NR_epoll_ctl}}, ENOMEM, [&] {
    try {
      setup.add("[0]:", a.read, b.read);
    } catch (const std::system_error& error) {
      refused = error.code().value() == ENOMEM;
    }
  });
  if (!tried) DDPRUN_SKIP("this kernel has no seccomp");
  CHECK(refused);
  for (const PipeEnds& ends : {a, b}) {
    CHECK(::fcntl(ends.read, F_GETFD) == -1);
    ::close(ends.write);
  }
}

TEST_CASE("collapsed lines have the ranks of the attempt that they were written in",
          "[output][collapse]") {
  Setup setup;
  const auto worker = [](int local_rank, int rank_base) {
    WorkerOutput output;
    output.local_rank = local_rank;
    output.collapse = true;
    output.collapsed_prefix = {"[${rank}]:", "", rank_base};
    output.prefix = output.collapsed_prefix.of(local_rank);
    return output;
  };
  std::array<PipeEnds, 2> pipes = {make_pipe(), make_pipe()};
  std::array<std::shared_ptr<OutputForwarder::Stream>, 2> streams;
  for (int rank : {0, 1}) {
    const auto at = static_cast<std::size_t>(rank);
    streams[at] = setup.output->add(worker(rank, 4), UniqueFd(pipes[at].read), {});
  }
  for (const PipeEnds& pipe : pipes) put(pipe.write, "first\n");
  CHECK(setup.shown() == "[4-5]:first\n");

  // The first goes on, as one that is kept; in place of the other a new one comes.
  put(pipes[0].write, "waits\n");
  setup.output->redirect(*streams[0], worker(0, 2));
  setup.output->drain(*streams[1]);
  ::close(pipes[1].write);
  pipes[1] = make_pipe();
  streams[1] = setup.output->add(worker(1, 2), UniqueFd(pipes[1].read), {});
  for (const PipeEnds& pipe : pipes) put(pipe.write, "second\n");

  CHECK(setup.shown() == "[4-5]:first\n[4]:waits\n[2-3]:second\n");
  for (const PipeEnds& pipe : pipes) ::close(pipe.write);
}

TEST_CASE("collapsed lines of stdout and stderr keep apart", "[output][collapse]") {
  asio::io_context io;
  const PipeEnds console_out = make_pipe(), console_err = make_pipe();
  auto output = std::make_unique<OutputForwarder>(io, console_out.write, console_err.write);
  std::vector<std::shared_ptr<OutputForwarder::Stream>> streams;
  for (int rank : {0, 1}) {
    WorkerOutput worker;
    worker.local_rank = rank;
    worker.collapse = true;
    worker.collapsed_prefix = {"[${rank}]:", "", 0};
    worker.prefix = worker.collapsed_prefix.of(rank);
    const PipeEnds out = make_pipe(), err = make_pipe();
    put(out.write, "said\n");
    put(err.write, "complained\n");
    for (int end : {out.write, err.write}) ::close(end);
    streams.push_back(output->add(worker, UniqueFd(out.read), UniqueFd(err.read)));
  }

  for (const auto& stream : streams) output->drain(*stream);
  output.reset();

  for (int end : {console_out.write, console_err.write}) ::close(end);
  const auto rest = [](int fd) {
    char buffer[1000];
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    ::close(fd);
    return std::string(buffer, static_cast<std::size_t>(std::max<ssize_t>(0, count)));
  };
  CHECK(rest(console_out.read) == "[0-1]:said\n");
  CHECK(rest(console_err.read) == "[0-1]:complained\n");
}
