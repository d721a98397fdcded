// Lines on a disk that is full for a while.
#include "trainer/report/metrics_file.h"

#include <iostream>
#include <sstream>
#include <stdexcept>

#include "tests/testing/catch.h"
#include "tests/testing/file_size_limit.h"
#include "tests/trainer/scratch.h"

using namespace ddprun::trainer;
using ddprun::testing::FileSizeLimit;

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

TEST_CASE("metrics go on where somebody has left half a line", "[trainer][report]") {
  const ScratchFolder folder;
  write_bytes(folder / "metrics", "one\ntw");
  MetricsFile(folder / "metrics").add("three");
  MetricsFile(folder / "metrics").add("four");
  CHECK(content_of(folder / "metrics") == "one\ntw\nthree\nfour\n");
  CHECK_THROWS_AS(MetricsFile(folder / "no/such"), std::runtime_error);
}
