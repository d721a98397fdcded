// The report's file: whole or not at all, and nothing else is overwritten.
#include "launcher/output/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "tests/testing/catch.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using ddprun::testing::content_of;
using ddprun::testing::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

std::ptrdiff_t files_in(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder), {});
}

}  // namespace

TEST_CASE("a file is written, replaced, and nothing is left beside it", "[report_file]") {
  const TemporaryFolder folder;
  const std::string path = folder / "report.json";

  CHECK(why_not_writable(path) == "");
  CHECK(write_whole_file(path, "first") == "");
  CHECK(write_whole_file(path, "second") == "");

  CHECK(content_of(path) == "second");
  CHECK(files_in(folder.path()) == 1);
  CHECK((fs::status(path).permissions() & fs::perms::owner_read) != fs::perms::none);
}

TEST_CASE("a file gets the usual permissions", "[report_file]") {
  const TemporaryFolder folder;
  const mode_t before = ::umask(027);
  CHECK(write_whole_file(folder / "report.json", "x") == "");
  ::umask(before);

  struct stat status {};
  REQUIRE(::stat((folder / "report.json").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
}

TEST_CASE("two writers never leave a mixture", "[report_file]") {
  const TemporaryFolder folder;
  const std::string path = folder / "report.json";
  const std::string a(200'000, 'a'), b(300'000, 'b');
  REQUIRE(write_whole_file(path, a).empty());
  std::atomic<int> running{2};
  const auto write_often = [&](const std::string& text) {
    for (int i = 0; i < 100; ++i) write_whole_file(path, text);
    --running;
  };
  std::thread one(write_often, a), other(write_often, b);

  bool whole = true;
  while (running > 0) {
    const std::string found = content_of(path);
    whole = whole && (found == a || found == b);
  }
  one.join();
  other.join();

  CHECK(whole);
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a path that cannot be written is told why before anything starts", "[report_file]") {
  const TemporaryFolder folder;

  CHECK(why_not_writable(folder.path()) == "it is a folder");
  CHECK(why_not_writable(folder / "none/report.json").find("there is no folder") == 0);
  CHECK(why_not_writable("") != "");
  CHECK(why_not_writable("-").find("/dev/stdout") != std::string::npos);
  CHECK(why_not_writable("./-") == "");
  CHECK(why_not_writable("/proc/report.json") != "");
  CHECK(write_whole_file(folder / "none/report.json", "x") != "");
  CHECK(write_whole_file(folder.path(), "x") != "");
  CHECK(fs::is_directory(folder.path()));
}

TEST_CASE("without a current folder a path in it has no place, and another has", "[report_file]") {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::create_directory(folder / "gone");
  fs::current_path(folder / "gone");
  fs::remove(folder / "gone");
  CHECK(write_whole_file("report.json", "x") != "");
  CHECK(write_whole_file(folder / "report.json", "x") == "");
  fs::current_path(before);
  CHECK(content_of(folder / "report.json") == "x");
}

TEST_CASE("a link stays a link, and what it leads to is replaced", "[report_file]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "real");
  std::ofstream(folder / "real/report.json") << "old";
  fs::create_symlink(folder / "real/report.json", folder / "link.json");

  CHECK(write_whole_file(folder / "link.json", "new") == "");

  CHECK(fs::is_symlink(folder / "link.json"));
  CHECK(content_of(folder / "real/report.json") == "new");
}

TEST_CASE("another user's link in a folder of all is not followed", "[report_file]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root can make another user's link");
  const TemporaryFolder folder, shared;
  REQUIRE(write_whole_file(folder / "ours", "kept") == "");
  fs::permissions(shared.path(), fs::perms::all | fs::perms::sticky_bit);
  fs::create_symlink(folder / "ours", shared / "report");
  CHECK(write_whole_file(shared / "report", "by our own link") == "");
  REQUIRE(::lchown((shared / "report").c_str(), 65534, 65534) == 0);
  for (const std::string& why :
       {why_not_writable(shared / "report"), write_whole_file(shared / "report", "lost")}) {
    CHECK(why == "it is another user's link, in a folder that anybody may write to");
  }
  CHECK(content_of(folder / "ours") == "by our own link");
  CHECK(files_in(shared.path()) == 1);
}

TEST_CASE("a device or a pipe is written to, not replaced", "[report_file]") {
  const TemporaryFolder folder;
  CHECK(write_whole_file("/dev/null", "x") == "");
  CHECK(fs::is_character_file("/dev/null"));

  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(write_whole_file(pipe, "x") != "");  // Nobody reads; it does not wait for one.
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  CHECK(write_whole_file(pipe, "x") == "");
  char byte = 0;
  CHECK(::read(reader, &byte, 1) == 1);
  ::close(reader);
  CHECK(fs::is_fifo(pipe));
}

TEST_CASE("the file behind /dev/stdout keeps what it holds", "[report_file]") {
  const TemporaryFolder folder;
  const std::string path = folder / "console.txt";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0);
  REQUIRE(::write(fd, "output\n", 7) == 7);

  CHECK(write_whole_file("/dev/fd/" + std::to_string(fd), "report") == "");

  ::close(fd);
  CHECK(content_of(path) == "output\nreport");
}
