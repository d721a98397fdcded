// Consoles that refuse text for a while, and consoles that may hang.
#include "launcher/output/console.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "command_line/gap_writer.h"
#include "launcher/output/forwarder.h"
#include "launcher/output/pty.h"
#include "tests/testing/as_nobody.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::command_line::GapWriter;
using ddprun::command_line::WriteCall;
using ddprun::command_line::Written;
using ddprun::testing::content_of;
using ddprun::testing::patience;

namespace {

// What a disk holds that has room for so many bytes more.
class FullDisk {
 public:
  explicit FullDisk(std::size_t room) : room_(room) {}
  Written write(std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (room_ == 0) return {0, error_};
    const std::size_t bytes = std::min(text.size(), room_);
    room_ -= bytes;
    content_ += text.substr(0, bytes);
    return {bytes, 0};
  }
  void refuse_with(int error) {
    const std::lock_guard lock(mutex_);
    room_ = 0;
    error_ = error;
  }
  void free(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    room_ += bytes;
  }
  std::string content() {
    const std::lock_guard lock(mutex_);
    return content_;
  }

 private:
  std::mutex mutex_;
  std::size_t room_;
  int error_ = ENOSPC;
  std::string content_;
};

WriteCall write_to(FullDisk& disk) {
  return [&disk](std::string_view text) { return disk.write(text); };
}

void write_all(GapWriter& writer, std::string_view text) {
  while (!text.empty()) {
    const Written written = writer.write(text);
    REQUIRE(written.error == 0);
    text.remove_prefix(written.bytes);
  }
}

constexpr std::size_t much = 1 << 20;

}  // namespace

TEST_CASE("where text is missing a line says how much and why", "[output][console]") {
  FullDisk disk(4);
  GapWriter writer(write_to(disk), "[ddprun]");
  write_all(writer, "one\nlost\n");
  CHECK(writer.missing_bytes() == 5);
  write_all(writer, "lost, too\n");
  CHECK(writer.missing_bytes() == 15);
  CHECK(writer.reason() == "No space left on device");

  disk.free(much);
  write_all(writer, "two\n");
  CHECK(writer.missing_bytes() == 0);
  write_all(writer, "three\n");
  CHECK(disk.content() ==
        "one\n[ddprun] 15 bytes of output are missing here: No space left on device\ntwo\nthree\n");
}

TEST_CASE("the line about a gap stands alone, also where a line broke off", "[output][console]") {
  FullDisk disk(2);
  GapWriter writer(write_to(disk), "[ddprun]");
  write_all(writer, "one\n");
  SECTION("after half a line of a worker") {
    disk.free(much);
    write_all(writer, "two\n");
    CHECK(disk.content() ==
          "on\n[ddprun] 2 bytes of output are missing here: No space left on device\ntwo\n");
  }
  SECTION("after half a line about a gap") {
    disk.free(10);
    write_all(writer, "two\n");
    CHECK(writer.missing_bytes() == 6);
    disk.refuse_with(EDQUOT);
    disk.free(much);
    write_all(writer, "three\n");
    CHECK(disk.content() ==
          "on\n[ddprun] \n[ddprun] 6 bytes of output are missing here: No space left on device\n"
          "three\n");
  }
}

TEST_CASE("who waits or has gone loses nothing that could be told of later", "[output][console]") {
  FullDisk disk(0);
  GapWriter writer(write_to(disk), "[ddprun]");
  for (const int error : {EAGAIN, EPIPE, ECONNRESET}) {
    disk.refuse_with(error);
    CHECK(writer.write("text\n").error == error);
    CHECK(writer.missing_bytes() == 0);
  }
  disk.refuse_with(EIO);
  write_all(writer, "text\n");
  disk.refuse_with(EAGAIN);
  CHECK(writer.write("more\n").error == EAGAIN);
  CHECK(writer.missing_bytes() == 5);
}

TEST_CASE("what is given up while the line about a gap waits is counted in it, or in the next one",
          "[output][console]") {
  FullDisk disk(0);
  GapWriter writer(write_to(disk), "[ddprun]");
  writer.lose("lost\n", EAGAIN);
  disk.refuse_with(EAGAIN);
  CHECK(writer.write("more\n").error == EAGAIN);
  writer.lose("more\n", EAGAIN);
  const std::string note = " bytes of output are missing here: Resource temporarily unavailable\n";
  SECTION("before the line began") {
    disk.free(much);
    CHECK(writer.tell());
    CHECK(disk.content() == "[ddprun] 10" + note);
  }
  SECTION("within the line") {
    disk.free(4);
    CHECK_FALSE(writer.tell());
    writer.lose("last\n", EAGAIN);
    disk.free(much);
    write_all(writer, "two\n");
    CHECK(disk.content() == "[ddprun] 10" + note + "[ddprun] 5" + note + "two\n");
  }
  CHECK(writer.missing_bytes() == 0);
}

TEST_CASE("a disk that was full for a while costs the console that while alone",
          "[output][console]") {
  const ddprun::testing::TemporaryFolder folder;
  std::string path = "/dev/null";  // Written by the loop.
  SECTION("a device") {}
  SECTION("a file, written in the background") { path = folder / "out"; }
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0);
  FullDisk disk(4);
  asio::io_context io;
  {
    OutputConsole console(io, fd, write_to(disk));
    const auto add = [&](const std::string& text) {
      console.add(&disk, "", text);
      REQUIRE(console.flush(patience(20s)));
    };
    add("one\n");
    add("two\n");
    CHECK(console.told_elsewhere("stdout") ==
          "4 bytes of output are missing on stdout: No space left on device");
    disk.free(much);
    add("three\n");
    CHECK(console.told_elsewhere("stdout").empty());
  }
  CHECK(disk.content() ==
        "one\n[ddprun] 4 bytes of output are missing here: No space left on device\nthree\n");
  ::close(fd);
}

TEST_CASE("what one console has refused to the end the other one tells", "[output][console]") {
  if (::access("/dev/full", W_OK) != 0) DDPRUN_SKIP("there is no /dev/full");
  const ddprun::testing::TemporaryFolder folder;
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  const int file = ::open((folder / "other").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  asio::io_context io;
  std::string name;
  bool done = false;
  SECTION("stderr") {
    name = "stderr";
    OutputForwarder output(io, file, full);
    output.write_line("1234567");
    output.when_written([&] { done = true; });
    while (!done && io.run_one_for(patience(20s)) > 0) {
    }
  }
  SECTION("both are one") {
    OutputForwarder output(io, full, full);
    output.write_line("1234567");
    output.when_written([&] { done = true; });
    while (!done && io.run_one_for(patience(20s)) > 0) {
    }
  }
  CHECK(done);
  const std::string told =
      "[ddprun] 8 bytes of output are missing on stderr: No space left on device\n";
  CHECK(content_of(folder / "other") == (name.empty() ? "" : told));
  ::close(full);
  ::close(file);
}

TEST_CASE("another user's terminal that nobody reads does not hold the loop",
          "[output][console][terminal]") {
  if (::geteuid() != 0) DDPRUN_SKIP("to become another user one must be root");
  const Pty pty = open_pty();
  const int ours = pty.our_end.get(), terminal = pty.worker_end.get();
  asio::io_context io;
  std::unique_ptr<OutputConsole> console;
  {
    const ddprun::testing::AsNobody nobody;
    console = std::make_unique<OutputConsole>(io, terminal);
  }
  REQUIRE(console->is_terminal());
  const std::string line(99, 'x');
  std::size_t sent = 0;
  for (; !console->congested(); sent += line.size() + 1) {
    console->add(&line, "", line + "\n");
    console->write_some();
  }
  bool alive = false, written = false;
  asio::post(io, [&] { alive = true; });
  io.poll();
  CHECK(alive);
  CHECK_FALSE(console->flush(0ms));

  console->when_written([&] { written = true; });
  ::fcntl(ours, F_SETFL, O_NONBLOCK);
  std::string shown;
  char buffer[65536];
  const auto limit = std::chrono::steady_clock::now() + patience(20s);
  while (!written && std::chrono::steady_clock::now() < limit) {
    const ssize_t n = ::read(ours, buffer, sizeof buffer);
    if (n > 0) shown.append(buffer, static_cast<std::size_t>(n));
    io.restart();
    io.poll();
  }
  for (ssize_t n; (n = ::read(ours, buffer, sizeof buffer)) > 0;) {
    shown.append(buffer, static_cast<std::size_t>(n));
  }
  CHECK(std::count(shown.begin(), shown.end(), 'x') * 100 == static_cast<long>(sent) * 99);
  CHECK((::fcntl(terminal, F_GETFL) & O_NONBLOCK) == 0);
  console.reset();
}
