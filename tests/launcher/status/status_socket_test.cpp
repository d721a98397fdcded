// A launcher's socket and who looks for it: found, answered, silent, dead, not to be trusted.
#include "launcher/status/status_socket.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "launcher/status/job_connection.h"
#include "launcher/status/process_use.h"
#include "launcher/status/run_folder.h"
#include "tests/launcher/status/listening.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"
#include "tests/testing/variables.h"

using namespace ddprun::launcher;
using ddprun::rendezvous::UniqueFd;
using ddprun::testing::Listening;
using ddprun::testing::lookup_in;
using ddprun::testing::patience;
using ddprun::testing::TemporaryFolder;
using ddprun::testing::unserved_socket;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

JobSnapshot mirrored(const ddprun::rendezvous::Query& query) {
  return {.run_id = "of " + query.what,
          .launcher_pid = ::getpid(),
          .node_rank = query.rank,
          .nodes = query.lines};
}

// That a launcher with this pid would give its socket here.
std::string name_of(pid_t pid) {
  const std::string own = new_socket_name();
  return std::to_string(pid) + own.substr(own.find('-'));
}

}  // namespace

TEST_CASE("17.2: a launcher is found by its socket and answers; its end leaves nothing",
          "[watch]") {
  const TemporaryFolder scratch;
  // Longer than the 107 bytes that a socket's path may have.
  const std::string folder = scratch / ("run" + std::string(120, 'x'));
  {
    const Listening launcher(folder, mirrored);
    CHECK(launcher.why.empty());
    struct stat facts {};
    REQUIRE(::stat(folder.c_str(), &facts) == 0);
    CHECK((facts.st_mode & 0777) == 0700);
    const Listening second(folder, mirrored);
    const auto jobs = find_jobs({folder}, patience(5s));
    REQUIRE(jobs.size() == 2);
    CHECK(jobs[0].pid == ::getpid());
    REQUIRE(jobs[0].snapshot);
    CHECK(jobs[0].snapshot->run_id == "of snapshot");
    const auto answer = ask_job(jobs[1], {.what = "weather"}, patience(5s));
    REQUIRE(answer);
    CHECK(parse_snapshot(*answer)->run_id == "of weather");
    CHECK(parse_snapshot(*answer)->node_rank == -1);
    const auto limited =
        ask_job(jobs[1], {.what = "all logs", .rank = 3, .lines = 20}, patience(5s));
    REQUIRE(limited);
    CHECK(parse_snapshot(*limited)->node_rank == 3);
    CHECK(parse_snapshot(*limited)->nodes == 20);
  }
  CHECK_FALSE(fs::exists(folder));
  CHECK(find_jobs({folder}, patience(5s)).empty());
}

TEST_CASE("17.2: a dead launcher's socket is no job, and is removed by who looks or starts",
          "[watch]") {
  const TemporaryFolder scratch;
  ::chmod(scratch.path().c_str(), 0700);
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  REQUIRE(::waitpid(ended, nullptr, 0) == ended);
  const std::string dead = scratch / name_of(ended);
  unserved_socket(dead, true);  // Closed at once: the name stays.
  CHECK(find_jobs({scratch.path()}, patience(5s)).empty());
  CHECK_FALSE(fs::exists(dead));

  unserved_socket(dead, true);
  const Listening launcher(scratch.path(), mirrored);
  CHECK_FALSE(fs::exists(dead));
}

TEST_CASE("17.2: in a folder of several hosts the sockets of others are left alone", "[watch]") {
  const TemporaryFolder scratch;
  ::chmod(scratch.path().c_str(), 0700);
  // Refused, as a socket is that another host's launcher listens at.
  const std::string other = scratch / "1-000000000000-00000000";
  const std::string unknown = scratch / "1-00000000";  // Of a machine that does not tell its boot.
  unserved_socket(other, true);
  unserved_socket(unknown, true);

  CHECK(find_jobs({scratch.path()}, patience(5s)).empty());
  { const Listening launcher(scratch.path(), mirrored); }

  CHECK(fs::exists(other));
  CHECK(fs::exists(unknown));
}

TEST_CASE("17.2: who may open no more files does not say that no job runs", "[watch]") {
  const TemporaryFolder scratch;
  ::chmod(scratch.path().c_str(), 0700);
  const UniqueFd first = unserved_socket(scratch / "1-first", true);
  const UniqueFd second = unserved_socket(scratch / "2-second", true);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  for (const rlim_t left : {0, 1, 2}) {  // Not even for the folder; its names; the second socket.
    const UniqueFd next(::dup(first.get()));
    const rlimit lowered{static_cast<rlim_t>(next.get()) + 1 + left, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &lowered) == 0);
    std::exception_ptr thrown;  // UBSan, too, opens a file where a member of it is called.
    try {
      find_jobs({scratch.path()}, 1ms);
    } catch (...) {
      thrown = std::current_exception();
    }
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    REQUIRE(thrown);
    const std::string said =
        ddprun::testing::message_of<std::system_error>([&] { std::rethrow_exception(thrown); });
    CHECK(ddprun::testing::contains(said, "Too many open files"));
  }
  CHECK(find_jobs({scratch.path()}, 1ms).size() == 2);
}

TEST_CASE("17.2: a launcher that does not answer is named with its process", "[watch]") {
  const TemporaryFolder scratch;
  ::chmod(scratch.path().c_str(), 0700);
  const UniqueFd silent = unserved_socket(scratch / "1-silent", true);
  const auto jobs = find_jobs({scratch.path()}, 50ms);
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].pid == ::getpid());
  CHECK_FALSE(jobs[0].snapshot);
  CHECK(fs::exists(scratch / "1-silent"));
}

TEST_CASE("17.2: what is sent instead of a question ends that connection alone", "[watch]") {
  const TemporaryFolder scratch;
  const std::string path = scratch / "run";
  const Listening launcher(path, mirrored);
  std::string why;
  const UniqueFd folder = open_run_folder(path, false, why);
  const auto names = socket_names(folder.get());
  REQUIRE(names.size() == 1);
  for (const std::string& words : {std::string(10'000, 'x'), std::string("[]\n"), std::string()}) {
    const UniqueFd connection = connect_to_job(folder.get(), names[0]);
    REQUIRE(connection);
    ::send(connection.get(), words.data(), words.size(), MSG_NOSIGNAL);
  }
  const auto jobs = find_jobs({path}, patience(5s));
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].snapshot);
}

TEST_CASE("17.2: a folder that others could have made, or could enter, is not used", "[watch]") {
  const TemporaryFolder scratch;
  std::string why;
  CHECK_FALSE(open_run_folder(scratch / "none", false, why));
  fs::create_directory(scratch / "open");
  ::chmod((scratch / "open").c_str(), 0755);
  CHECK_FALSE(open_run_folder(scratch / "open", true, why));
  CHECK(why.find("not this user's alone") != std::string::npos);
  fs::create_directory(scratch / "own");
  ::chmod((scratch / "own").c_str(), 0700);
  CHECK(open_run_folder(scratch / "own", true, why));
  fs::create_symlink(scratch / "own", scratch / "link");
  CHECK_FALSE(open_run_folder(scratch / "link", true, why));
  std::ofstream(scratch / "file") << "x";
  CHECK_FALSE(open_run_folder(scratch / "file", true, why));

  // The next place is taken.
  const auto socket = StatusSocket::socket_in({scratch / "open", scratch / "own"});
  CHECK(find_jobs({scratch / "own"}, 1ms).size() == 1);
}

TEST_CASE("17.2: a socket hears of the removal of its own name, and of no other", "[watch]") {
  const TemporaryFolder scratch;
  ::chmod(scratch.path().c_str(), 0700);
  const auto other = StatusSocket::socket_in({scratch.path()});
  asio::io_context io;
  StatusSocket served(
      io, [](const ddprun::rendezvous::Query&, const StatusSocket::Reply&) {}, 1ms);
  bool gone = false;
  auto socket = StatusSocket::socket_in({scratch.path()});
  const std::string path = socket->path();
  served.serve(std::move(socket), [&] { gone = true; });
  fs::remove(other->path());
  io.run_one();
  CHECK_FALSE(gone);
  fs::remove(path);
  while (!gone) io.run_one();

  // Another one takes its place, and is removed with its owner.
  served.serve(StatusSocket::socket_in({scratch.path()}), [] {});
  CHECK(find_jobs({scratch.path()}, 1ms).size() == 1);
}

TEST_CASE("17.2: a socket whose folder was moved away is gone from where it is looked for",
          "[watch]") {
  const TemporaryFolder scratch;
  const fs::path run = scratch / "run";
  const auto socket = StatusSocket::socket_in({run});
  CHECK_FALSE(socket->is_gone());
  fs::rename(run, scratch / "moved");
  CHECK(socket->is_gone());
}

TEST_CASE("17.2: jobs are looked for wherever a launcher may have put its socket", "[watch]") {
  std::map<std::string, std::string> variables;
  const auto places = [&] { return run_folder_places(lookup_in(variables), 1000); };
  using List = std::vector<std::string>;
  CHECK(places() == List{"/tmp/ddprun-1000", "/run/user/1000/ddprun"});
  variables["TMPDIR"] = "/tmp";
  CHECK(places() == List{"/tmp/ddprun-1000", "/run/user/1000/ddprun"});
  variables["TMPDIR"] = "/scratch";
  variables["XDG_RUNTIME_DIR"] = "/run/user/1000";
  CHECK(places() == List{"/run/user/1000/ddprun", "/scratch/ddprun-1000", "/tmp/ddprun-1000"});
  variables["DDPRUN_RUN_DIR"] = "/mine";
  CHECK(places() == List{"/mine"});
}

TEST_CASE("17.2: of a program that knows nothing of us the kernel tells, with what it started",
          "[watch]") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[1]);
    char byte = 0;
    ::_exit(::read(ends[0], &byte, 1) == 0 ? 0 : 1);  // Until the test closes its end.
  }
  ::close(ends[0]);
  const ProcessUse own = read_process_use(::getpid());
  CHECK(own.state == 'R');
  CHECK(own.processes >= 2);
  CHECK(own.threads >= own.processes);
  CHECK(own.rss_bytes > 1 << 20);
  const ProcessUse other = read_process_use(child);
  CHECK(other.processes == 1);
  CHECK(other.rss_bytes < own.rss_bytes);
  ::close(ends[1]);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(read_process_use(child).processes == 0);
}
