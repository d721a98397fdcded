// Lines on a disk that is full for a while, and into a pipe that is not read for one.
#include "trainer/report/metrics_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "tests/testing/catch.h"
#include "tests/testing/file_size_limit.h"
#include "tests/trainer/scratch.h"
#include "worker/unique_fd.h"

using namespace ddprun::trainer;
using ddprun::testing::FileSizeLimit;
using ddprun::worker::UniqueFd;

TEST_CASE("a full disk costs the lines that it has no room for", "[trainer][report]") {
  const ScratchFolder folder;
  MetricsFile file(folder / "metrics");
  CHECK(file.add("one").empty());
  {
    const FileSizeLimit full(6);  // Half a line, at which the next one begins a new line.
    const std::string told = file.add("two");
    CHECK(contains(told, "--metrics: cannot write to " + (folder / "metrics").string() + " (File"));
    CHECK(file.add("three").empty());  // Told once.
  }
  const std::string told = file.add("four");
  CHECK(contains(told, "can be written again; lines that are missing there: 2"));
  CHECK(file.add("five").empty());
  CHECK(content_of(folder / "metrics") == "one\ntw\nfour\nfive\n");

  {
    const FileSizeLimit full(17);  // To the byte.
    CHECK(contains(file.add("six"), "cannot write"));
  }
  CHECK(contains(file.add("seven"), "missing there: 1"));
  CHECK(content_of(folder / "metrics") == "one\ntw\nfour\nfive\nseven\n");
}

TEST_CASE("lines that are missing to the end are told of there", "[trainer][report]") {
  const ScratchFolder folder;
  std::ostringstream errors;
  std::streambuf* const before = std::cerr.rdbuf(errors.rdbuf());
  {
    const FileSizeLimit full(0);
    MetricsFile file(folder / "metrics");
    file.add("one");
    file.add("two");
  }
  MetricsFile(folder / "metrics").add("three");  // Of whose file nothing is missing.
  std::cerr.rdbuf(before);
  CHECK(errors.str() == "train: warning: --metrics: lines that are missing at the end of " +
                            (folder / "metrics").string() + ": 2\n");
}

TEST_CASE("a pipe whose reader has gone costs lines and no training", "[trainer][report]") {
  const ScratchFolder folder;
  const std::string pipe = (folder / "metrics").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto open_reader = [&] {
    return UniqueFd(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  };
  const auto read_from = [](const UniqueFd& reader) {
    std::string text(100, '\0');
    const ssize_t count = ::read(reader.get(), text.data(), text.size());
    return text.substr(0, count < 0 ? 0 : static_cast<std::size_t>(count));
  };
  MetricsFile file(pipe);  // Which nobody reads yet: no reason to wait.
  CHECK(contains(file.add("none"), "--metrics: cannot write to " + pipe + " (Broken pipe)"));
  UniqueFd reader = open_reader();
  CHECK(contains(file.add("one"), "can be written again; lines that are missing there: 1"));
  CHECK(read_from(reader) == "one\n");

  reader.reset();
  CHECK(contains(file.add("two"), "--metrics: cannot write to " + pipe + " (Broken pipe)"));
  CHECK(file.add("three").empty());
  sigset_t pending;
  ::sigpending(&pending);
  CHECK(::sigismember(&pending, SIGPIPE) == 0);  // None is left that would end the process later.

  reader = open_reader();
  CHECK(contains(file.add("four"), "can be written again; lines that are missing there: 2"));
  CHECK(read_from(reader) == "four\n");
}

TEST_CASE("metrics go on where somebody has left half a line", "[trainer][report]") {
  const ScratchFolder folder;
  write_bytes(folder / "metrics", "one\ntw");
  MetricsFile(folder / "metrics").add("three");
  MetricsFile(folder / "metrics").add("four");
  CHECK(content_of(folder / "metrics") == "one\ntw\nthree\nfour\n");
  CHECK_THROWS_AS(MetricsFile(folder / "no/such"), std::runtime_error);
}
