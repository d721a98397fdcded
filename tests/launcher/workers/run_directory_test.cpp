// Where a run's files are, and which of them stay.
#include "launcher/workers/run_directory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::launcher;
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
    directory.keep_error_files();
    CHECK(directory.kept_path().empty());
  }
  CHECK(scratch.entries() == 0);
  {
    RunDirectory directory("", "id", false);
    touch(directory.make_attempt(0, 1) + "/0/error.json");
    directory.keep_error_files();
    CHECK_FALSE(directory.kept_path().empty());
  }
  CHECK(scratch.entries() == 1);
}

TEST_CASE("logs that were asked for stay, one directory per attempt", "[launcher][run_directory]") {
  const Scratch scratch;
  {
    RunDirectory directory(scratch.path + "/deep/logs", "id", true);
    CHECK(directory.make_attempt(0, 1) != directory.make_attempt(1, 1));
  }
  CHECK(fs::is_directory(scratch.path + "/deep/logs"));
}

TEST_CASE("removing empty folders leaves every file where it is", "[launcher][run_directory]") {
  const Scratch scratch;
  fs::create_directories(scratch.path + "/a/b/c");
  fs::create_directories(scratch.path + "/a/d");
  fs::create_directory(scratch.path + "/elsewhere");
  fs::create_directory_symlink(scratch.path + "/elsewhere", scratch.path + "/a/link");
  touch(scratch.path + "/a/d/error.json");

  remove_empty_folders(scratch.path + "/a");

  CHECK_FALSE(fs::exists(scratch.path + "/a/b"));
  CHECK(fs::exists(scratch.path + "/a/d/error.json"));
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
