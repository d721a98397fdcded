// An event file on a disk that is full for a while.
#include "trainer/report/tensorboard_writer.h"

#include <cstring>
#include <optional>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/file_size_limit.h"
#include "tests/trainer/scratch.h"

using namespace ddprun::trainer;
using ddprun::testing::FileSizeLimit;

namespace {

// The payloads of a file that holds whole records and nothing else.
std::vector<std::string> records_in(const std::filesystem::path& path) {
  constexpr std::size_t head_bytes = 12, tail_bytes = 4;
  const std::string bytes = content_of(path);
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t size = 0;
    REQUIRE(at + head_bytes <= bytes.size());
    std::memcpy(&size, bytes.data() + at, sizeof size);
    REQUIRE(size <= bytes.size() - at - head_bytes - tail_bytes);
    const std::string payload = bytes.substr(at + head_bytes, size);
    REQUIRE(bytes.substr(at, head_bytes + size + tail_bytes) == tfrecord(payload));
    records.push_back(payload);
    at += head_bytes + size + tail_bytes;
  }
  return records;
}

}  // namespace

TEST_CASE("a full disk costs records, and no half one stays before others",
          "[trainer][tensorboard]") {
  const ScratchFolder folder;
  TensorboardWriter writer(folder.path());
  writer.scalars(1, {{"one", 1}});
  REQUIRE(records_in(writer.path()).size() == 2);
  {
    const FileSizeLimit full(std::filesystem::file_size(writer.path()) + 9);
    writer.scalars(2, {{"two", 2}});
    CHECK(contains(writer.take_problem(), "--tensorboard: cannot write to "));
    writer.scalars(3, {{"three", 3}});
    CHECK(writer.take_problem().empty());  // Told once.
  }
  writer.scalars(4, {{"four", 4}});
  CHECK(contains(writer.take_problem(), "can be written again; what came meanwhile is missing"));

  const auto records = records_in(writer.path());
  REQUIRE(records.size() == 3);
  CHECK(contains(records[1], "one"));
  CHECK(contains(records[2], "four"));
}

TEST_CASE("a file that began on a full disk is one of events later", "[trainer][tensorboard]") {
  const ScratchFolder folder;
  std::optional<TensorboardWriter> writer;
  {
    const FileSizeLimit full(5);
    writer.emplace(folder.path());
    CHECK(contains(writer->take_problem(), "cannot write to "));
    writer->start(0, "run", "what it is");
  }
  const auto path = writer->path();
  writer->scalars(1, {{"one", 1}});
  const auto records = records_in(path);
  REQUIRE(records.size() == 3);
  CHECK(contains(records[0], "brain.Event:2"));
  CHECK(contains(records[1], "\x3a\x02\x08\x01"));  // Event.session_log with the status START.
  CHECK(contains(records[2], "one"));
}
