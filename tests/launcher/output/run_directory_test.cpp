// Where a run's files are, and which of them stay.
#include "launcher/output/run_directory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "tests/testing/catch.h"
#include "tests/testing/heard_log.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

// $TMPDIR points into it for the length of a test.
struct Scratch {
  Scratch() { setenv("TMPDIR", path.c_str(), 1); }
  ~Scratch() { unsetenv("TMPDIR"); }
  std::ptrdiff_t entries() const {
    return std::distance(fs::directory_iterator(path), fs::directory_iterator());
  }
  ddprun::testing::TemporaryFolder folder;
  const std::string path = folder.path();
};

void touch(const std::string& path) { std::ofstream(path) << "x"; }

}  // namespace

TEST_CASE("a run that asked for no files leaves none", "[launcher][run_directory]") {
  const Scratch scratch;
  {
    RunDirectory directory("", "a/b", false);
    CHECK(scratch.entries() == 0);
    const std::string attempt = directory.make_attempt(0, 2);
    CHECK(fs::is_directory(attempt + "/1"));
    CHECK(attempt.find("/ddprun_a_b_") != std::string::npos);
    touch(attempt + "/0/error.json");
  }
  CHECK(scratch.entries() == 0);
}

TEST_CASE("after a failure error files stay, empty directories do not",
          "[launcher][run_directory]") {
  const Scratch scratch;
  {
    RunDirectory directory("", "id", false);
    directory.make_attempt(0, 1);
    directory.keep_files(RunDirectory::Keep::All);
    CHECK(directory.kept_path().empty());
  }
  CHECK(scratch.entries() == 0);
  {
    RunDirectory directory("", "id", false);
    touch(directory.make_attempt(0, 1) + "/0/error.json");
    directory.keep_files(RunDirectory::Keep::All);
    CHECK_FALSE(directory.kept_path().empty());
  }
  CHECK(scratch.entries() == 1);
}

TEST_CASE("17.1: what was told does not stay, unless there is more to read",
          "[launcher][run_directory]") {
  const Scratch scratch;
  for (const bool more : {false, true}) {
    RunDirectory directory("", "id", false);
    const std::string attempt = directory.make_attempt(0, 1);
    touch(attempt + "/0/error.json");
    touch(attempt + "/0/error.json.17.tmp");  // Of a worker that was stopped while it wrote.
    if (more) touch(attempt + "/0/samples.txt");
    directory.keep_files(RunDirectory::Keep::WhatIsNotTold);
    CHECK(directory.kept_path().empty() == !more);
  }
  CHECK(scratch.entries() == 1);
}

TEST_CASE("logs that were asked for stay, one directory per attempt", "[launcher][run_directory]") {
  const Scratch scratch;
  std::string first, second;
  {
    RunDirectory directory(scratch.path + "/deep/logs", "id", true);
    first = directory.make_attempt(0, 1);
    second = directory.make_attempt(1, 1);
    touch(first + "/0/stdout.log");
  }
  CHECK(first != second);
  CHECK(fs::is_regular_file(first + "/0/stdout.log"));
  CHECK(fs::is_directory(second + "/0"));
}

TEST_CASE("an attempt whose number comes again has a folder of its own, and the first one's stays",
          "[launcher][run_directory]") {
  const Scratch scratch;
  RunDirectory directory(scratch.path + "/logs", "id", true);
  const std::string first = directory.make_attempt(0, 1);
  touch(first + "/0/stdout.log");
  directory.make_attempt(1, 1);
  const std::string second = directory.make_attempt(0, 2);
  const std::string third = directory.make_attempt(0, 1);
  CHECK(second == first + ".2");
  CHECK(third == first + ".3");
  CHECK(fs::is_directory(second + "/1"));
  CHECK(fs::is_regular_file(first + "/0/stdout.log"));
  CHECK_FALSE(fs::exists(second + "/0/stdout.log"));
}

TEST_CASE("paths are whole where TMPDIR is not", "[launcher][run_directory]") {
  const Scratch scratch;
  const fs::path before = fs::current_path();
  fs::current_path(scratch.path);
  fs::create_directory("own");
  setenv("TMPDIR", "own", 1);
  const std::string attempt = RunDirectory("", "id", false).make_attempt(0, 1);
  fs::current_path(before);
  CHECK(attempt.rfind(scratch.path + "/own/ddprun_id_", 0) == 0);
}

TEST_CASE("14.3: a run's folder that was removed while the job ran is made again",
          "[launcher][run_directory]") {
  const Scratch scratch;
  for (const std::string& log_dir : {std::string(), scratch.path + "/logs"}) {
    RunDirectory directory(log_dir, "id", !log_dir.empty());
    const std::string first = directory.make_attempt(0, 1);
    fs::remove_all(log_dir.empty() ? fs::path(first).parent_path() : fs::path(log_dir));

    const std::string second = directory.make_attempt(1, 2);

    CHECK(fs::path(first).parent_path() == fs::path(second).parent_path());
    CHECK(fs::is_directory(second + "/1"));
  }
}

TEST_CASE("a temporary folder is told before it is there", "[launcher][run_directory]") {
  const Scratch scratch;
  RunDirectory directory("", "id", false);
  std::vector<std::string> told;
  const auto before = [&](const std::string& path) {
    CHECK_FALSE(fs::exists(path));
    told.push_back(path);
  };
  const std::string attempt = directory.make_attempt(0, 1, before);
  CHECK(told == std::vector{fs::path(attempt).parent_path().string()});
  CHECK(told.front() == directory.temporary_path());
  directory.make_attempt(1, 1, before);
  CHECK(told.size() == 1);
}

TEST_CASE("what somebody else has put in the place of a run's folder is not used",
          "[launcher][run_directory]") {
  const Scratch scratch;
  RunDirectory directory("", "id", false);
  const fs::path root = fs::path(directory.make_attempt(0, 1)).parent_path();
  fs::remove_all(root);
  fs::create_directory(scratch.path + "/elsewhere");
  fs::create_directory_symlink(scratch.path + "/elsewhere", root);
  CHECK_THROWS_AS(directory.make_attempt(1, 1), std::system_error);
  CHECK(fs::is_empty(scratch.path + "/elsewhere"));
  fs::remove(root);
  if (::geteuid() != 0) return;
  fs::create_directory(root);
  REQUIRE(::chown(root.c_str(), 65534, 65534) == 0);
  CHECK_THROWS_AS(directory.make_attempt(1, 1), std::system_error);
}

TEST_CASE("14.3: where TMPDIR cannot be written it is named, and another place is taken",
          "[launcher][run_directory]") {
  const Scratch scratch;
  // Root may write in a folder without the permission, but nobody may make one in /proc.
  const std::string read_only = scratch.path + "/read_only";
  fs::create_directory(read_only);
  fs::permissions(read_only, fs::perms::owner_read | fs::perms::owner_exec);
  std::vector<std::string> places{scratch.path + "/missing", "/proc"};
  if (::geteuid() != 0) places.push_back(read_only);
  for (const std::string& place : places) {
    setenv("TMPDIR", place.c_str(), 1);
    ddprun::testing::HeardLog heard;
    std::string attempt;
    {
      RunDirectory directory("", "id", false);
      attempt = directory.make_attempt(0, 1);
      CHECK(fs::is_directory(attempt + "/0"));
    }
    CHECK_FALSE(fs::exists(attempt));
    INFO(heard.text());
    CHECK(heard.text().find("cannot make a directory in TMPDIR=" + place + " (") !=
          std::string::npos);
    CHECK(heard.text().find("error files go to /") != std::string::npos);
  }
}

TEST_CASE("14.3: folders that cannot be read cost no report", "[launcher][run_directory]") {
#ifdef __SANITIZE_ADDRESS__
  // Before it looks at an object's type it writes the object into a pipe, to learn whether it can
  // be read: without descriptors every object looks broken.
  DDPRUN_SKIP("UBSan needs descriptors of its own");
#endif
  const Scratch scratch;
  RunDirectory directory("", "id", false);
  touch(directory.make_attempt(0, 1) + "/0/error.json");
  directory.keep_files(RunDirectory::Keep::All);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  // One descriptor for the folder itself, none for those in it: even root cannot go on.
  const int next = ::dup(0);
  REQUIRE(next >= 0);
  ::close(next);
  const rlimit few{static_cast<rlim_t>(next) + 1, before.rlim_max};

  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const std::string kept = directory.kept_path();
  const std::string root = fs::path(kept).string();
  remove_after_kill(root, fs::file_time_type::max());
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);

  CHECK_FALSE(kept.empty());
  CHECK(fs::is_regular_file(kept + "/attempt_0/0/error.json"));
}

TEST_CASE("16.5: of a killed launcher's folder stays what was written before its end",
          "[launcher][run_directory]") {
  const Scratch scratch;
  const std::string root = scratch.path + "/a";
  for (const char* place : {"/0", "/1", "/2/empty", "/3"}) fs::create_directories(root + place);
  fs::create_directory(scratch.path + "/elsewhere");
  fs::create_directory_symlink(scratch.path + "/elsewhere", root + "/link");
  const auto killed = fs::file_time_type::clock::now() - 1s;
  touch(root + "/0/error.json");
  fs::last_write_time(root + "/0/error.json", killed - 1s);
  touch(root + "/1/error.json");
  touch(root + "/1/error.json.17.tmp");
  touch(root + "/3/stderr.log");

  remove_after_kill(root, killed);

  CHECK(fs::exists(root + "/0/error.json"));
  CHECK_FALSE(fs::exists(root + "/1"));
  CHECK_FALSE(fs::exists(root + "/2"));
  CHECK(fs::exists(root + "/3/stderr.log"));
  CHECK(fs::exists(scratch.path + "/elsewhere"));
}

TEST_CASE("the null device means no files", "[launcher][run_directory]") {
  RunDirectory directory("/dev/null", "id", true);

  CHECK(directory.make_attempt(0, 1).empty());
}

TEST_CASE("whether a log directory can be used is known before, and leaves nothing in it",
          "[launcher][run_directory]") {
  const Scratch scratch;
  touch(scratch.path + "/file");

  CHECK(log_dir_problem(scratch.path + "/new/folder").empty());
  CHECK(fs::is_empty(scratch.path + "/new/folder"));
  CHECK(log_dir_problem(scratch.path + "/file/folder").find("cannot make that folder") == 0);
  CHECK(log_dir_problem("/proc").find("cannot make folders in it") == 0);  // Even root cannot.
}

TEST_CASE("a log directory that cannot be made is named", "[launcher][run_directory]") {
  const Scratch scratch;
  touch(scratch.path + "/file");
  RunDirectory directory(scratch.path + "/file", "id", false);

  try {
    directory.make_attempt(0, 1);
    FAIL("it did not throw");
  } catch (const std::system_error& error) {
    CHECK(std::string(error.what()).find(scratch.path + "/file") != std::string::npos);
  }
}
