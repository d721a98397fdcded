// A console that refuses text for a while.
#include "trainer/report/steady_output.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

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
