// Ranks that meet through a file: who is first, what an earlier job left, what another job does.
#include "rendezvous/file_rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <asio.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "rendezvous/store_client.h"
#include "rendezvous/wire/wire.h"
#include "tests/testing/catch.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"

using namespace ddprun::rendezvous;
using namespace ddprun::testing;
using namespace std::chrono_literals;
using ddprun::testing::FailingCall;
using ddprun::testing::message_of;
using ddprun::testing::TemporaryFolder;
using ddprun::testing::with_failing_calls;

namespace {

std::unique_ptr<FileRendezvous> meet(const std::string& path, int rank, int world = 3,
                                     std::chrono::milliseconds timeout = 20s) {
  return std::make_unique<FileRendezvous>(path, rank, world, timeout);
}

auto meet_later(const std::string& path, int rank, int world = 3) {
  return std::async(std::launch::async, [=] { return meet(path, rank, world); });
}

std::string error_of(const std::function<void()>& action) {
  return message_of<FileRendezvousError>(action);
}

// What an open file is asked. Of read() the one that asks for as much as a note may have.
const std::vector<FailingCall> reading{{.number = __NR_read, .argument = 2, .value = 64 << 10}};
const std::vector<FailingCall> looking{
    {.number = __NR_fstat}, {.number = __NR_newfstatat, .argument = 3, .value = AT_EMPTY_PATH}};
constexpr const char* no_filters = "this kernel or container answers no call with an error";

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

  CHECK(contains(error_of([&] { meet(path, 0); }), "belongs to a job that still runs"));
  CHECK(contains(error_of([&] { meet(path, 1, 3, 50ms); }), "has a rank 1 already"));
  CHECK(contains(error_of([&] { meet(path, 2, 4, 50ms); }), "has a world size of 3, not 4"));
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

TEST_CASE("a note that another host replaces while it is read is looked for again",
          "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "meet";
  const FileNote note{.token = "t", .world_size = 3, .stores = {{"127.0.0.1", 1}}};
  std::ofstream(path) << note.to_text();
  const std::vector<FailingCall>& calls = GENERATE(0, 1) == 0 ? reading : looking;

  std::string error;
  const bool tried = with_failing_calls(calls, ESTALE, [&] {
    error = message_of<FileRendezvousTimeout>([&] { meet(path, 1, 3, 20ms); });
  });

  if (!tried) DDPRUN_SKIP(no_filters);
  CHECK(contains(error, "it is not there yet"));
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("a file that cannot be read is refused with the reason", "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "meet";
  std::ofstream(path) << "milk\n";
  const int rank = GENERATE(0, 1);
  const std::vector<FailingCall>& calls = GENERATE(0, 1) == 0 ? reading : looking;

  std::string error;
  const bool tried =
      with_failing_calls(calls, EIO, [&] { error = error_of([&] { meet(path, rank); }); });

  if (!tried) DDPRUN_SKIP(no_filters);
  CHECK(contains(error, "is none of ddprun's: it cannot be read: Input/output error"));
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

  CHECK(contains(error_of([&] { meet(path, 1, 3, 20ms); }), path));
  CHECK(
      contains(error_of([&] { meet(folder / "no/such/folder", 0); }), "No such file or directory"));
}

TEST_CASE("a store that fails while a rank enters itself is an error with the file and the limit",
          "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "meet";
  const bool silent = GENERATE(true, false);
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  auto store = std::async(std::launch::async, [&] {
    asio::ip::tcp::socket socket = acceptor.accept();
    std::string answers;  // To PING, the question for the attempt, CHECK, WAIT and GET.
    put_number(answers, static_cast<std::uint32_t>(::getpid()));
    put_string(answers, "#1");
    answers += std::string(2, '\0');
    put_string(answers, "token");
    asio::write(socket, asio::buffer(answers));
    std::string heard;
    asio::error_code ended;
    while (!ended && (silent || !contains(heard, "rank/1"))) {
      char bytes[256];
      heard.append(bytes, socket.read_some(asio::buffer(bytes), ended));
    }
  });
  const std::uint16_t port = acceptor.local_endpoint().port();
  const FileNote note{.token = "token", .world_size = 3, .stores = {{"127.0.0.1", port}}};
  std::ofstream(path) << note.to_text();

  const auto enter = [&] { meet(path, 1, 3, silent ? 300ms : 20s); };
  const std::string error = silent ? message_of<FileRendezvousTimeout>(enter) : error_of(enter);

  INFO(error);
  CHECK(contains(error, path));
  CHECK(contains(error, silent ? "300 ms" : "20 s"));
  store.get();
}

TEST_CASE("a host is reached by its addresses of both families, and first by those of IPv4",
          "[file_rendezvous]") {
  const auto up = [](const char* address) { return InterfaceAddress{"eth0", address, 24}; };
  const auto down = [](const char* address) {
    return InterfaceAddress{"eth1", address, 24, false, false};
  };
  const std::vector<InterfaceAddress> all = {{"lo", "", 0, true},
                                             {"lo", "::1", 128, true},
                                             {"lo", "127.0.0.1", 8, true},
                                             up(""),
                                             up("fe80::1%eth0"),
                                             up("2001:db8::7"),
                                             up("10.0.0.7"),
                                             up("fd00::7"),
                                             down("10.0.0.8"),
                                             down("2001:db8::8")};

  CHECK(addresses_of(all) ==
        std::vector<std::string>{"10.0.0.7", "2001:db8::7", "fd00::7", "127.0.0.1"});
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

  CHECK(contains(error, path));
  CHECK(contains(error, "holds something else. It was not touched"));
  std::ifstream file(path);
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == text);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("15.3: what another user has made in a folder where anybody may is not believed",
          "[file_rendezvous]") {
  if (::geteuid() != 0) DDPRUN_SKIP("to give a file to another user one must be root");
  constexpr uid_t other_user = 54'321;
  const TemporaryFolder folder;
  const std::string path = folder / "meet";
  const HostedStore theirs("127.0.0.1", 0);
  StoreClient("127.0.0.1", theirs.port(), 10s).set("ddprun/file_rendezvous/token", "planted");
  const FileNote planted{
      .token = "planted", .world_size = 3, .stores = {{"127.0.0.1", theirs.port()}}};
  std::ofstream(path) << planted.to_text();
  REQUIRE(::chown(path.c_str(), other_user, other_user) == 0);

  for (const mode_t everybodys : {01777, 0777}) {
    REQUIRE(::chmod(folder.path().c_str(), everybodys) == 0);
    for (const int rank : {0, 1}) {
      CHECK(contains(error_of([&] { meet(path, rank); }), "belongs to another user, uid 54321"));
    }
  }
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);

  // Where those alone may write who are trusted, owners say nothing: a file server changes them.
  REQUIRE(::chmod(folder.path().c_str(), 0770) == 0);
  CHECK(meet(path, 1)->port() == theirs.port());
}

TEST_CASE("a folder or a pipe is no rendezvous file", "[file_rendezvous]") {
  const TemporaryFolder folder;
  const std::string path = folder / "taken";
  if (GENERATE(false, true)) {
    std::filesystem::create_directory(path);
  } else {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  }

  CHECK(contains(error_of([&] { meet(path, GENERATE(0, 1)); }), "is not a regular file"));
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
