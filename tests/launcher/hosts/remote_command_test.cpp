// Words that reach another host's shell, the variables that go along, and ssh's failures in words.
#include "launcher/hosts/remote_command.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>

#include "launcher/hosts/chosen_environment.h"
#include "tests/testing/catch.h"
#include "tests/testing/process.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace std::chrono_literals;
using ddprun::testing::contains;
using Words = std::vector<std::string>;

TEST_CASE("17.3: a quoted word is one word for a shell, whatever it holds", "[hosts]") {
  for (const std::string word :
       {"plain/path-1.0", "with blank", "it's", "", "$HOME `id` $(id)", "a\\b", "\\'", "\"",
        "* ? [x] ~ ! # & ; | < >", "-n", "two\nlines"}) {
    INFO(word);
    const std::string script = "exec printf '%s|' " + shell_word(word);
    for (const char* shell : {"/bin/sh", "/bin/bash"}) {
      CHECK(ddprun::testing::run({shell, "-c", script}, 20s).output == word + "|");
    }
  }
}

TEST_CASE("17.3: words are quoted that need it, a backslash outside of quotes for fish",
          "[hosts]") {
  CHECK(shell_word("me@a:/b-1.0_%+,=") == "me@a:/b-1.0_%+,=");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("a\\b") == R"('a'\\'b')");
}

TEST_CASE("17.3: --ssh-options are words, with quotes for blanks", "[hosts]") {
  CHECK(split_words("") == Words{});
  CHECK(split_words(" -p\t2222 \n-i '/a key' -o\"User=me\" ''") ==
        Words{"-p", "2222", "-i", "/a key", "-oUser=me", ""});
  CHECK_THROWS_AS(split_words("-i 'key"), std::invalid_argument);
}

TEST_CASE("17.3: the user's ssh options come before ours, and the host after all", "[hosts]") {
  const Words argv = ssh_command({"-p", "22"}, "me@a", "exec x");
  CHECK(Words(argv.begin(), argv.begin() + 3) == Words{"ssh", "-p", "22"});
  CHECK(Words(argv.end() - 3, argv.end()) == Words{"-T", "me@a", "exec x"});
  CHECK(std::find(argv.begin(), argv.end(), "ControlMaster=no") != argv.end());
}

TEST_CASE("17.3: what keeps ssh from starting is told with what to do about that", "[hosts]") {
  CHECK(contains(start_failure("ssh", ENOENT).what, "cannot start ssh: No such file"));
  CHECK(contains(start_failure("ssh", ENOENT).advice, "install ssh"));
  CHECK_FALSE(contains(start_failure("/opt/ddprun", ENOENT).advice, "install ssh"));
  CHECK(contains(start_failure("ssh", EMFILE).what, "Too many open files"));
  CHECK(contains(start_failure("ssh", EMFILE).advice, "each host takes"));
}

// The shell of the other host, without the other host.
TEST_CASE("17.3: the launcher's own path is tried first, then PATH", "[hosts]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string tool = folder / "ddprun";
  REQUIRE(ddprun::testing::run(
              {"/bin/sh", "-c",
               "printf '#!/bin/sh\\necho \"$0 $*\"\\n' > " + tool + " && chmod 755 " + tool},
              20s)
              .status == 0);
  const auto said = [&](const std::string& launcher) {
    return ddprun::testing::run({"/bin/sh", "-c", remote_command(launcher, std::nullopt)}, 20s,
                                {{"PATH", folder.path() + ":/usr/bin:/bin"}})
        .output;
  };
  CHECK(said(tool) == tool + " --node-on-stdin\n");
  CHECK(said("/no/where/ddprun") == tool + " --node-on-stdin\n");
}

TEST_CASE("17.3: a copy takes its blocks of stdin and not a byte more, and is gone", "[hosts]") {
  const ddprun::testing::TemporaryFolder folder;
  const std::string command = remote_command("/no/where/ddprun", 2);
  // A "launcher" of two blocks that says what is left of stdin, and fails.
  const std::string script = "cd " + folder.path() +
                             "; printf '#!/bin/sh\\ncat; exit 7\\n' > two; truncate -s 131072 two;"
                             " mkdir tmp; { cat two; echo rest; } | env TMPDIR=" +
                             folder.path() + "/tmp PATH=/usr/bin:/bin sh -c " +
                             shell_word(command) + "; echo \"status $?\"; ls tmp";
  CHECK(ddprun::testing::run({"/bin/bash", "-c", script}, 20s).output ==
        std::string(copy_wanted) + "\nrest\nstatus 7\n");
}

TEST_CASE("17.3: a copy that has no room says so, and is gone", "[hosts]") {
  const ddprun::testing::TemporaryFolder folder;
  // The limit on files' sizes stands for a file system that is full.
  const std::string script = "cd " + folder.path() +
                             "; mkdir tmp; ulimit -f 64; trap '' XFSZ; head -c 131072 /dev/zero |"
                             " env TMPDIR=" +
                             folder.path() + "/tmp PATH=/usr/bin:/bin LC_ALL=C sh -c " +
                             shell_word(remote_command("/no/where/ddprun", 2)) +
                             "; echo \"status $?\"; ls tmp";
  const std::string said = ddprun::testing::run({"/bin/bash", "-c", script}, 20s).output;
  INFO(said);
  CHECK(contains(said, "cannot copy ddprun: dd: "));
  CHECK(contains(said, "File too large"));
  CHECK_FALSE(contains(said, "records in"));
  CHECK(said.substr(said.size() - 9) == "status 1\n");
  CHECK(contains(ssh_failure(1, "cannot copy ddprun: dd: No space left on device\n", "b", true),
                 "No space left on device; make room in TMPDIR there"));
}

TEST_CASE("17.3: the word for a copy is heard once, and is none of what the host said", "[hosts]") {
  std::string said = "Welcome\n" + std::string(copy_wanted) + "\n";
  CHECK(take_copy_wanted(said));
  CHECK(said == "Welcome\n\n");
  CHECK_FALSE(take_copy_wanted(said));
}

TEST_CASE("17.3: ssh's failures are told in its own words, with what to do", "[hosts]") {
  const auto told = [](int status, const std::string& said) {
    return ssh_failure(status, said, "b", false);
  };
  CHECK(contains(told(255, "ssh: connect to host b port 22: Connection refused\r\n"),
                 "connect to host b port 22: Connection refused"));
  CHECK(contains(told(255, "Host key verification failed."), "accept-new"));
  CHECK(contains(told(255,
                      "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n"
                      "Host key verification failed."),
                 "ssh-keygen -R"));
  CHECK(contains(told(255, "b: Permission denied (publickey)."), "ssh-copy-id b"));
  CHECK(contains(told(255, "Could not resolve hostname b"), "~/.ssh/config"));
  const std::string dropped =
      "kex_exchange_identification: Connection closed by remote host\r\n"
      "Connection closed by UNKNOWN port 65535\r\n";
  CHECK(contains(told(255, dropped), "MaxStartups"));
  CHECK(is_turned_away(255, dropped));
  CHECK_FALSE(is_turned_away(1, dropped));
  const auto behind = [&](const std::string& cause) { return cause + "\r\n" + dropped; };
  for (const char* cause :
       {"ssh: Could not resolve hostname jump",
        "ssh: connect to host jump port 22: Connection refused",
        "ssh: connect to host jump port 22: Connection timed out", "stdio forwarding failed"}) {
    INFO(cause);
    CHECK_FALSE(is_turned_away(255, behind(cause)));
    CHECK_FALSE(contains(told(255, behind(cause)), "MaxStartups"));
  }
  CHECK_FALSE(is_turned_away(255, "Connection refused"));
  CHECK(told(255, "") == "ssh ended with status 255; try: ssh b true");
  CHECK(told(1, "boom\n") ==
        "the launcher there ended with status 1: boom; try: ssh b ddprun --version");
  CHECK(contains(ssh_failure(1, "boom", "b", true), "the launcher there ended"));
  CHECK(contains(told(1, "mktemp: failed"), "the launcher there ended"));
  CHECK(contains(told(127, "sh: 1: exec: ddprun: not found"), "--copy-self"));
  CHECK(contains(ssh_failure(126, "Permission denied", "b", true), "noexec"));
  CHECK(contains(told(127, "error while loading shared libraries: libx.so"),
                 "install the libraries that it needs"));
  CHECK(last_words_of("one\ntwo\r\nthree\nfour\n\n") == "two / three / four");
  CHECK(last_words_of(" \r\n").empty());
  CHECK(last_words_of(std::string(1001, 'x')) == std::string(1000, 'x'));
  // A banner of a stranger's sshd moves no cursor: by U+009B, escape, or a turn of the direction.
  CHECK(last_words_of("a\033]0;b\a \302\2332J \177 \342\200\256c") == "a^[]0;b^G M-^[2J ^? ?c");
}

TEST_CASE("17.3: -x takes names, values and patterns, and no options of ours", "[hosts]") {
  const Words environment = {"NCCL_DEBUG=INFO", "NCCL_ALGO=a,b", "PET_NNODES=3", "HOME=/root",
                             "EMPTY="};
  const auto chosen = [&](const Words& wishes) {
    return choose_environment(wishes, environment).variables;
  };
  CHECK(chosen({}).empty());
  CHECK(chosen({"HOME", "EMPTY"}) == Words{"EMPTY=", "HOME=/root"});
  CHECK(chosen({"NCCL_*"}) == Words{"NCCL_ALGO=a,b", "NCCL_DEBUG=INFO"});
  CHECK(chosen({"NCCL_*", "NCCL_DEBUG=WARN"}) == Words{"NCCL_ALGO=a,b", "NCCL_DEBUG=WARN"});
  CHECK(chosen({"*"}).size() == 4);
  CHECK(choose_environment({"MISSING"}, environment).notes.size() == 1);
  CHECK(choose_environment({"X_*"}, environment).notes.size() == 1);
  CHECK(choose_environment({"HOME", "NCCL_*", "NEW=1"}, environment).notes.empty());
  for (const char* bad : {"", "1A", "a b", "=x", "A-B=1"}) {
    CHECK_THROWS_AS(chosen({bad}), std::invalid_argument);
  }
  CHECK(split_wishes("A,B_*,") == Words{"A", "B_*", ""});
  CHECK(split_wishes("A=1,2") == Words{"A=1,2"});
}
