// Ranks that meet through a file: who is first, what an earlier job left, what another job does.
#include "rendezvous/file_rendezvous.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "rendezvous/store_client.h"
#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::rendezvous;
using namespace std::chrono_literals;
using ddprun::testing::TemporaryFolder;

namespace {

std::unique_ptr<FileRendezvous> meet(const std::string& path, int rank, int world = 3,
                                     std::chrono::milliseconds timeout = 20s) {
  return std::make_unique<FileRendezvous>(path, rank, world, timeout);
}

auto meet_later(const std::string& path, int rank, int world = 3) {
  return std::async(std::launch::async, [=] { return meet(path, rank, world); });
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const FileRendezvousError& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("ranks meet in any order, and the file goes with the job", "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "meet";
  {
    auto two = meet_later(path, 2), one = meet_later(path, 1);
    const auto zero = meet(path, 0);
    const auto first = one.get(), second = two.get();

    StoreClient(first->host(), first->port(), 10s).set("key", "from rank 1");
    CHECK(StoreClient(second->host(), second->port(), 10s).get("key") == "from rank 1");
    CHECK(std::filesystem::exists(path));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("what an earlier job left behind is not believed", "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "meet";
  // A note of a store that is gone, and one of a port on which another store listens now.
  const HostedStore other("127.0.0.1", 0);
  const std::uint16_t port = GENERATE(false, true) ? other.port() : std::uint16_t{1};
  const FileNote stale{.token = "old", .world_size = 3, .stores = {{"127.0.0.1", port}}};
  std::ofstream(path) << stale.to_text();

  auto one = meet_later(path, 1);
  const auto zero = meet(path, 0);
  CHECK(one.get()->port() == zero->port());
}

TEST_CASE("a living job keeps its file to itself", "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "meet";
  const auto zero = meet(path, 0);
  const auto one = meet(path, 1);

  CHECK(has(error_of([&] { meet(path, 0); }), "belongs to a job that still runs"));
  CHECK(has(error_of([&] { meet(path, 1, 3, 50ms); }), "has a rank 1 already"));
  CHECK(has(error_of([&] { meet(path, 2, 4, 50ms); }), "has a world size of 3, not 4"));
  CHECK(meet(path, 2)->port() == zero->port());
}

TEST_CASE("a rank of the next job waits for its own rank 0", "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "meet";
  auto zero = meet(path, 0);
  const auto one = meet(path, 1);
  auto next_one = meet_later(path, 1);
  const std::uint16_t old_port = zero->port();
  zero.reset();
  const auto next_zero = meet(path, 0);

  CHECK(next_one.get()->port() == next_zero->port());
  CHECK(old_port != 0);
}

TEST_CASE("14.17: a rank that waits for the file says what is the matter with it",
          "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "meet";
  std::promise<std::string> told;
  auto rank_1 = std::async(std::launch::async, [&] {
    WaitWords words;
    words.first = 20ms;
    words.tell = [&](std::chrono::milliseconds, const std::string& text) { told.set_value(text); };
    return FileRendezvous(path, 1, 2, 60s, "", words).port();
  });

  CHECK(told.get_future().get() ==
        "the rendezvous file " + path +
            ": it is not there yet: is rank 0 running, and does it see the same file?");
  FileRendezvous rank_0(path, 0, 2, 60s);
  CHECK(rank_1.get() == rank_0.port());
}

TEST_CASE("no file within the timeout is an error that names it", "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "meet";

  CHECK(has(error_of([&] { meet(path, 1, 3, 20ms); }), path));
  CHECK(has(error_of([&] { meet(folder / "no/such/folder", 0); }), "No such file or directory"));
}

TEST_CASE("somebody's file is refused on every rank and not touched", "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "notes.txt";
  // Among them one that begins almost as ours do, and one that is longer than what is read.
  const std::string text = GENERATE(std::string("milk\n"), std::string("ddprun-rendezvou"),
                                    std::string(1 << 17, 'x'), std::string(1, '\0'));
  std::ofstream(path) << text;
  const int rank = GENERATE(0, 1);

  const std::string error = error_of([&] { meet(path, rank); });  // Long before its timeout.

  CHECK(has(error, path));
  CHECK(has(error, "holds something else. It was not touched"));
  std::ifstream file(path);
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == text);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a folder or a pipe is no rendezvous file", "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "taken";
  if (GENERATE(false, true)) {
    std::filesystem::create_directory(path);
  } else {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  }

  CHECK(has(error_of([&] { meet(path, GENERATE(0, 1)); }), "is not a regular file"));
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("an empty file, or half a note of another version, is as good as none",
          "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "meet";
  std::ofstream(path) << GENERATE("", "ddprun-rendezvous 7\nnew");
  {
    auto one = meet_later(path, 1);
    const auto zero = meet(path, 0);
    CHECK(one.get()->port() == zero->port());
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("only whole notes are read", "[file_rendezvous]") {
  const FileNote note{
      .token = "t", .world_size = 2, .stores = {{"10.0.0.1", 1}, {"fd00::1", 65'535}}};
  const std::string text = note.to_text();
  const auto again = FileNote::parse(text);
  REQUIRE(again);
  CHECK(again->token == "t");
  CHECK(again->world_size == 2);
  CHECK(again->stores == note.stores);
  for (std::size_t size = 0; size + 1 < text.size(); ++size) {
    INFO(size);
    CHECK_FALSE(FileNote::parse(text.substr(0, size)));
  }
  for (const char* bad : {"", "hello", "ddprun-rendezvous 2\nend\n", "ddprun-rendezvous 1\nend\n",
                          "ddprun-rendezvous 1\ntoken a\nworld x\nstore h 1\nend\n",
                          "ddprun-rendezvous 1\ntoken a\nworld 1\nstore h 99999\nend\n",
                          "ddprun-rendezvous 1\ntoken a b\nworld 1\nstore h 1\nend\n"}) {
    CHECK_FALSE(FileNote::parse(bad));
  }
}
