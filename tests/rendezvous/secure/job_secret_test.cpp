// Which files serve as a secret, and how one is made.
#include "rendezvous/secure/job_secret.h"

#include <fcntl.h>
#include <grp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "rendezvous/unique_fd.h"
#include "tests/testing/catch.h"
#include "tests/testing/check_contains.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/text.h"
#include "tests/testing/variables.h"

using namespace ddprun::rendezvous;
using ddprun::testing::check_contains;
using ddprun::testing::lookup_in;
using ddprun::testing::TemporaryFolder;

namespace {

const std::string good(64, 'x');

std::string file_with(const TemporaryFolder& folder, const std::string& text, mode_t mode = 0600) {
  const std::string path = folder / "secret";
  std::ofstream(path) << text;
  REQUIRE(::chmod(path.c_str(), mode) == 0);
  return path;
}

std::string refusal_of(const std::string& file) {
  return ddprun::testing::message_of<SecurityError>([&] { read_secret(file); });
}

std::string mode_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  char text[8];
  std::snprintf(text, sizeof text, "%04o", status.st_mode & 07777);
  return text;
}

}  // namespace

TEST_CASE("a secret is the text of its file, less the blanks at its end", "[secure][secret]") {
  const TemporaryFolder folder;
  CHECK(read_secret(file_with(folder, good)).text() == good);
  CHECK(read_secret(file_with(folder, good + " \t\r\n\n")).text() == good);
  CHECK(read_secret(file_with(folder, good, 0400)).text() == good);
}

TEST_CASE("a secret that others may read or write is refused, with what to do",
          "[secure][secret]") {
  const TemporaryFolder folder;
  for (const mode_t mode : {0640, 0604, 0660, 0644, 0620}) {
    const std::string path = file_with(folder, good, mode);
    check_contains(refusal_of(path), path);
    check_contains(refusal_of(path), mode == 0620 ? "others may write it" : "others may read it");
    check_contains(refusal_of(path), "chmod 600");
    CHECK(refusal_of(path).find(good) == std::string::npos);
  }
}

TEST_CASE("a secret of another user is refused", "[secure][secret]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root can give a file away");
  const TemporaryFolder folder;
  const std::string path = file_with(folder, good);
  REQUIRE(::chown(path.c_str(), 4711, 0) == 0);
  check_contains(refusal_of(path), "belongs to another user (number 4711)");
}

// What kubelet makes of a Secret that is mounted: links to a folder that it changes at once for the
// next version, and files of root's. With fsGroup they are the pod's group's to read.
TEST_CASE("15.5: a secret that Kubernetes mounts serves the pod that it is for",
          "[secure][secret]") {
  if (::geteuid() != 0) DDPRUN_SKIP("only root can make files of other groups");
  const TemporaryFolder folder;
  const auto path_in = [&](const std::string& name) { return folder / name; };
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  const std::string version = path_in("..2026_11_22_10_00_00.123456789");
  REQUIRE(::mkdir(version.c_str(), 0755) == 0);
  std::ofstream(version + "/secret") << good;
  REQUIRE(::symlink("..2026_11_22_10_00_00.123456789", path_in("..data").c_str()) == 0);
  REQUIRE(::symlink("..data/secret", path_in("secret").c_str()) == 0);

  constexpr gid_t pod_group = 4242;
  struct Case {
    mode_t mode;
    gid_t file_group;
    uid_t user;
    std::vector<gid_t> groups;  // Of the process.
    std::string refusal;
    uid_t owner = 0;
    std::optional<gid_t> main_group = {};  // Of the process, where it is not the user's number.
  };
  const std::vector<Case> cases = {
      {0400, 0, 0, {}, ""},                      // defaultMode: 0400, a container of root's.
      {0440, pod_group, 1000, {pod_group}, ""},  // fsGroup, runAsUser.
      {0440, pod_group, 0, {pod_group}, ""},     // fsGroup, a container of root's.
      {0440, 0, 1000, {0}, ""},                  // A user of its own in group 0.
      {0440, 0, 0, {0}, "others may read it"},
      {0440, pod_group, 0, {}, "others may read it"},              // Not in the group: whose is it?
      {0400, 0, 1000, {pod_group}, "Permission denied"},           // runAsUser without fsGroup.
      {0644, pod_group, 1000, {pod_group}, "others may read it"},  // The usual defaultMode.
      {0460, pod_group, 1000, {pod_group}, "others may write it"},
      {0440, pod_group, 0, {}, "", 0, pod_group},  // A container of root's with runAsGroup.
      {0440, pod_group, 1000, {pod_group}, "others may read it", 1000},  // No mount: its user's
                                                                         // own.
  };
  for (const Case& pod : cases) {
    REQUIRE(::chown((version + "/secret").c_str(), pod.owner, pod.file_group) == 0);
    REQUIRE(::chmod((version + "/secret").c_str(), pod.mode) == 0);
    int pipe_ends[2];
    REQUIRE(::pipe(pipe_ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      std::string refusal = "cannot become that user";
      const gid_t group = pod.main_group.value_or(pod.user);
      if (::setgroups(pod.groups.size(), pod.groups.data()) == 0 &&
          ::setresgid(group, group, group) == 0 && ::setresuid(pod.user, pod.user, pod.user) == 0) {
        refusal = refusal_of(path_in("secret"));
      }
      [[maybe_unused]] const auto written = ::write(pipe_ends[1], refusal.data(), refusal.size());
      ::_exit(0);
    }
    const UniqueFd reads(pipe_ends[0]);
    ::close(pipe_ends[1]);
    std::string refusal(4096, '\0');
    const ssize_t size = ::read(reads.get(), refusal.data(), refusal.size());
    refusal.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    INFO("mode " << std::oct << pod.mode << std::dec << " of group " << pod.file_group << ", user "
                 << pod.user << ": " << refusal);
    if (pod.refusal.empty()) CHECK(refusal.empty());
    CHECK(refusal.find(pod.refusal) != std::string::npos);
  }
}

TEST_CASE("what cannot be a secret is refused with the reason", "[secure][secret]") {
  const TemporaryFolder folder;
  check_contains(refusal_of(folder / "nothing"), "No such file");
  check_contains(refusal_of(folder / "nothing"), "openssl rand -hex 32");
  check_contains(refusal_of(folder.path()), "no regular file");
  check_contains(refusal_of(file_with(folder, "\n")), "empty");
  check_contains(refusal_of(file_with(folder, "secret")), "its 6 characters can be guessed");
  CHECK(refusal_of(file_with(folder, std::string(secret_chars_min, 'x'))).empty());
  CHECK(refusal_of(file_with(folder, std::string(secret_chars_max, 'x'))).empty());
  check_contains(refusal_of(file_with(folder, std::string(secret_chars_max + 1, 'x'))),
                 "longer than");
  check_contains(refusal_of(file_with(folder, std::string(1 << 20, 'x'))), "longer than");
  check_contains(refusal_of(file_with(folder, good + "\n" + good)), "other bytes than printable");
  check_contains(refusal_of(file_with(folder, good + std::string(1, '\0'))),
                 "other bytes than printable");
  for (const char* other : {"\xc3\xa9", " x", "\x7f"}) {
    check_contains(refusal_of(file_with(folder, good + other)), "other bytes than printable");
  }

  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  check_contains(refusal_of(pipe), "no regular file");
}

TEST_CASE("a secret comes through a descriptor that was handed over", "[secure][secret]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const std::string text = good + "\n";
  REQUIRE(::write(write_end.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  write_end.reset();

  CHECK(read_secret("/dev/fd/" + std::to_string(read_end.get())).text() == good);
  check_contains(refusal_of("/dev/fd/" + std::to_string(read_end.get())), "empty");
}

TEST_CASE("a secret that comes in pieces is one", "[secure][secret]") {
  int ends[2];
  // One piece a read.
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const std::string first(40, 'a'), second(40, 'b');
  REQUIRE(::send(write_end.get(), first.data(), first.size(), 0) == 40);
  REQUIRE(::send(write_end.get(), second.data(), second.size(), 0) == 40);
  write_end.reset();

  CHECK(read_secret("/dev/fd/" + std::to_string(read_end.get())).text() == first + second);
}

TEST_CASE("a terminal, which would show the secret, is refused", "[secure][secret]") {
  const UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!master || ::grantpt(master.get()) != 0 || ::unlockpt(master.get()) != 0) {
    DDPRUN_SKIP("no terminal can be made here");
  }
  const UniqueFd terminal(::open(::ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  REQUIRE(terminal);
  const std::string typed = good + "\n\4";  // And the end of what is typed.
  REQUIRE(::write(master.get(), typed.data(), typed.size()) == static_cast<ssize_t>(typed.size()));

  check_contains(refusal_of("/dev/fd/" + std::to_string(terminal.get())), "it is a terminal");
}

TEST_CASE("each digit of a new secret is drawn by itself", "[secure][secret]") {
  std::vector<SecretBytes> secrets;
  for (int i = 0; i < 50; ++i) secrets.push_back(make_secret_text("getrandom"));

  for (std::size_t digit = 1; digit < 64; ++digit) {
    INFO("digit " << digit);
    for (std::size_t earlier = 0; earlier < digit; ++earlier) {
      CHECK_FALSE(std::all_of(secrets.begin(), secrets.end(), [&](const SecretBytes& secret) {
        return secret.text()[digit] == secret.text()[earlier];
      }));
    }
  }
}

TEST_CASE("the usual place follows the user's configuration folder", "[secure][secret]") {
  std::map<std::string, std::string> variables;
  const auto place = [&] { return usual_secret_file(lookup_in(variables)); };
  CHECK(place().empty());
  variables["HOME"] = "/home/ada";
  CHECK(place() == "/home/ada/.config/ddprun/secret");
  variables["XDG_CONFIG_HOME"] = "relative";
  CHECK(place() == "/home/ada/.config/ddprun/secret");
  variables["XDG_CONFIG_HOME"] = "/etc/ada";
  CHECK(place() == "/etc/ada/ddprun/secret");
}

TEST_CASE("a secret is made at first use, for its user alone, and found from then on",
          "[secure][secret]") {
  const TemporaryFolder folder;
  const std::string path = folder / "home/.config/ddprun/secret";
  bool made = false;
  const SecretBytes first = read_or_make_secret(path, made);
  CHECK(made);
  CHECK(first.size() == 64);
  CHECK(mode_of(path) == "0600");
  CHECK(mode_of(folder / "home/.config/ddprun") == "0700");
  CHECK(read_or_make_secret(path, made).text() == first.text());
  CHECK_FALSE(made);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "home/.config/ddprun")) {
    names.insert(entry.path().filename());
  }
  CHECK(names == std::set<std::string>{"secret"});

  const std::string other = folder / "other/ddprun/secret";
  CHECK(read_or_make_secret(other, made).text() != first.text());
}

TEST_CASE("several that begin together make one secret", "[secure][secret]") {
  const TemporaryFolder folder;
  const std::string path = folder / "ddprun/secret";
  std::vector<std::string> texts(8);
  std::atomic<int> makers{0};
  std::vector<std::thread> threads;
  for (std::string& text : texts) {
    threads.emplace_back([&path, &text, &makers] {
      bool made = false;
      text = read_or_make_secret(path, made).text();
      makers += made ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(makers == 1);
  CHECK(std::set<std::string>(texts.begin(), texts.end()).size() == 1);
}

TEST_CASE("a place where nothing can be made is told with another way", "[secure][secret]") {
  const TemporaryFolder folder;
  const std::string file = file_with(folder, good);
  bool made = false;
  std::string told;
  try {
    read_or_make_secret(file + "/ddprun/secret", made);
  } catch (const SecurityError& error) {
    told = error.what();
  }
  check_contains(told, file + "/ddprun/secret");
}
