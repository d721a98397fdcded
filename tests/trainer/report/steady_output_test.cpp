// A console that refuses text for a while.
#include "trainer/report/steady_output.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <ostream>
#include <string>
#include <thread>

#include "tests/testing/catch.h"
#include "tests/testing/file_size_limit.h"
#include "tests/trainer/scratch.h"

using namespace ddprun::trainer;
using ddprun::testing::FileSizeLimit;

namespace {

struct ConsoleFile {
  ~ConsoleFile() { ::close(fd); }
  std::string shown() const { return content_of(folder / "console"); }

  const ScratchFolder folder;
  const int fd =
      ::open((folder / "console").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  SteadyOutput output{fd};
  std::ostream stream{&output};
};

}  // namespace

TEST_CASE("what a full console refused is counted where it is missing", "[trainer][report]") {
  ConsoleFile console;
  console.stream << "one\n" << std::flush;
  {
    const FileSizeLimit full(4);
    console.stream << "two" << std::endl;
    console.stream << 3 << std::endl;
  }
  console.stream << "four" << std::endl;
  CHECK(console.shown() ==
        "one\ntrain: 6 bytes of output are missing here: File too large\nfour\n");

  const std::string before = console.shown();
  {
    const FileSizeLimit full(before.size() + 2);
    console.stream << "five" << std::endl;
  }
  console.stream << "six" << std::endl;
  CHECK(console.shown() ==
        before + "fi\ntrain: 3 bytes of output are missing here: File too large\nsix\n");
  CHECK(console.output.finish("stdout").empty());
}

TEST_CASE("what is missing at the end is told there, or elsewhere", "[trainer][report]") {
  ConsoleFile console;
  {
    const FileSizeLimit full(0);
    console.stream << "one" << std::endl;
    CHECK(console.output.finish("stdout") == "4 bytes of stdout are missing: File too large");
  }
  console.stream << "two";
  CHECK(console.output.finish("stdout").empty());
  CHECK(console.shown() == "train: 4 bytes of output are missing here: File too large\ntwo");

  ConsoleFile late;
  {
    const FileSizeLimit full(0);
    late.stream << "one" << std::endl;
  }
  CHECK(late.output.finish("stdout").empty());
  CHECK(late.shown() == "train: 4 bytes of output are missing here: File too large\n");
}

TEST_CASE("a reader that has gone misses nothing", "[trainer][report]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  ::close(ends[0]);
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  SteadyOutput output(ends[1]);
  std::ostream stream(&output);
  stream << "one" << std::endl;
  CHECK(stream.good());
  CHECK(output.finish("stdout").empty());
  ::signal(SIGPIPE, before);
  ::close(ends[1]);
}

TEST_CASE("a console that does not wait for its reader is waited for", "[trainer][report]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(::fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
  std::string read;
  std::thread reader([&] {
    char bytes[1000];
    for (ssize_t count = 0; (count = ::read(ends[0], bytes, sizeof bytes)) > 0;) {
      read.append(bytes, static_cast<std::size_t>(count));
    }
  });
  {
    SteadyOutput output(ends[1]);
    std::ostream stream(&output);
    for (int line = 0; line < 300; ++line) stream << std::string(999, 'x') << std::endl;
    CHECK(output.finish("stdout").empty());
  }
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  CHECK(read.size() == 300'000);
}

TEST_CASE("a reader that has stalled is not waited for again until it reads", "[trainer][report]") {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds limit{100};
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  SteadyOutput output(ends[1], limit);
  std::ostream stream(&output);
  const auto fill = [&] {
    const std::string many(4096, 'x');
    while (::write(ends[1], many.data(), many.size()) > 0) {
    }
  };
  const auto drained = [&] {
    std::string read;
    char bytes[4096];
    for (ssize_t count = 0; (count = ::read(ends[0], bytes, sizeof bytes)) > 0;) {
      read.append(bytes, static_cast<std::size_t>(count));
    }
    return read;
  };
  const auto flush_s = [&](int lines) {
    const auto began = Clock::now();
    for (int line = 0; line < lines; ++line) stream << "a line" << std::endl;
    return Clock::now() - began;
  };
  constexpr int many_lines = 100;
  fill();
  const auto waited = flush_s(many_lines);
  CHECK(waited >= limit);
  CHECK(waited < limit * many_lines / 2);

  drained();
  flush_s(1);
  CHECK(drained() ==
        "train: 700 bytes of output are missing here: Resource temporarily unavailable\na line\n");
  fill();
  CHECK(flush_s(1) >= limit);  // It reads again, and may take its time.
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("what a library prints to stdout comes at once", "[trainer][report]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    // As it is at the start of a program.
    if (!std::freopen(("/dev/fd/" + std::to_string(ends[1])).c_str(), "w", stdout)) ::_exit(1);
    new SteadyConsole;  // To the end of the process.
    std::printf("NCCL INFO\n");
    std::cout << "a step" << std::endl;
    ::_exit(0);  // As of a signal: nothing is flushed any more.
  }
  ::close(ends[1]);
  std::string read;
  char bytes[100];
  for (ssize_t count = 0; (count = ::read(ends[0], bytes, sizeof bytes)) > 0;) {
    read.append(bytes, static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(read == "NCCL INFO\na step\n");
}

TEST_CASE("threads write in a stream's output without a lock of their own", "[trainer][report]") {
  ConsoleFile console;
  const auto write = [&] {
    std::ostream stream(&console.output);
    for (int line = 0; line < 1000; ++line) stream << "a line\n";
    stream << std::flush;
  };
  std::thread other(write);
  write();
  other.join();
  CHECK(console.output.finish("stdout").empty());
  CHECK(console.shown().size() == 2 * 1000 * std::string("a line\n").size());
}
