// Jobs of several hosts and the secret that their nodes prove (docs/security.md).
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/endless_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/core_files.h"
#include "tests/testing/network_hosts.h"

using namespace ddprun::testing;

namespace {

using Variables = std::map<std::string, std::string>;

// A home of its own, as on a machine that shares none.
struct Home {
  Variables variables() const { return {{"XDG_CONFIG_HOME", folder.path()}}; }
  std::string secret_file() const { return folder / "ddprun/secret"; }
  TemporaryFolder folder;
};

std::vector<std::string> node(int rank, const std::vector<std::string>& options = {},
                              const std::string& commands = "exit 0") {
  return launch({"--nnodes", "2", "--node-rank", std::to_string(rank), "--master-addr",
                 NetworkHosts::address(0)}) +
         options + shell(commands);
}

}  // namespace

TEST_CASE("nodes that share a home share a secret, which is nowhere to be seen") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const Home home;
  const std::vector<std::string> options = {"--forward-signals", "USR1", "--event-log",
                                            home.folder / "events"};
  const std::string program = read_pid + until_usr1("up $RANK pid $pid");
  Process first(hosts.on(0, node(0, options, program)), home.variables());
  Process second(hosts.on(1, node(1, options, program)), home.variables());
  REQUIRE(first.wait_for_output("up 0 pid ", 20s));
  REQUIRE(second.wait_for_output("up 1 pid ", 20s));

  std::string secret = content_of(home.secret_file());
  REQUIRE(secret.size() == 65);
  secret.pop_back();
  // `ip netns exec` becomes ddprun.
  for (const int pid : {first.pid(), second.pid()}) {
    CHECK_FALSE(core_would_hold(std::to_string(pid), secret));
    CHECK_FALSE(contains(content_of("/proc/" + std::to_string(pid) + "/cmdline"), secret));
  }
  const std::string worker = "/proc/" + std::to_string(number_after(first.output(), "up 0 pid "));
  CHECK(contains(content_of(worker + "/environ"), "RANK=0"));
  CHECK_FALSE(contains(content_of(worker + "/environ"), secret));
  CHECK_FALSE(contains(content_of(worker + "/cmdline"), secret));

  finish({&first, &second});
  const std::string said = first.output() + second.output();
  CHECK(count_of(said, "made " + home.secret_file()) == 1);
  CHECK_FALSE(contains(said, secret));
  CHECK(contains(content_of(home.folder / "events"), "\"attempt\""));
  CHECK_FALSE(contains(content_of(home.folder / "events"), secret));
}

TEST_CASE("a node with a secret of its own is refused, told how to get the job's, and then joins") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const Home home, other;
  Process first(hosts.on(0, node(0)), home.variables());
  REQUIRE(first.wait_for_output("waiting for node 1", 20s));

  const auto refused = run(hosts.on(1, node(1)), 20s, other.variables());
  INFO(refused.output);
  CHECK(refused.status == 73);
  CHECK(contains(refused.output, "scp 10.77.0.1:.config/ddprun/secret " + other.secret_file()));
  CHECK(first.wait_for_output("refused: it does not have the secret of this job", 20s));

  std::filesystem::copy_file(home.secret_file(), other.secret_file(),
                             std::filesystem::copy_options::overwrite_existing);
  CHECK(run(hosts.on(1, node(1)), 20s, other.variables()).status == 0);
  CHECK(first.wait(20s).status == 0);
}

TEST_CASE("workers prove a key to each other that they inherit, which is not the secret") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const Home home;
  const std::string program =
      "echo \"fd $DDPRUN_SECRET_FD holds $(wc -c < /proc/self/fd/3)\"; exec " +
      binary("summing_worker");
  Process first(hosts.on(0, node(0, {}, program)), home.variables());
  Process second(hosts.on(1, node(1, {}, program)), home.variables());
  REQUIRE(first.wait_for_output("summing", 60s));
  REQUIRE(second.wait_for_output("summing", 60s));
  CHECK(contains(first.output(), "fd 3 holds 32"));
  std::string secret = content_of(home.secret_file());
  secret.pop_back();
  for (const int pid : descendants_running(first.pid(), "summing_worker")) {
    CHECK_FALSE(core_would_hold(std::to_string(pid), secret));
  }
}

TEST_CASE("a worker whose key was closed on the way says so, and does not go on without it") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const Home home;
  Process first(hosts.on(0, node(0, {}, "exec " + binary("summing_worker"))), home.variables());
  Process second(hosts.on(1, node(1, {}, "exec 3<&-; exec " + binary("summing_worker"))),
                 home.variables());
  const auto two = second.wait(60s);
  INFO(two.output);
  CHECK(two.status != 0);
  CHECK(contains(two.output, "DDPRUN_SECRET_FD=3 names no key"));
  CHECK(first.wait(60s).status != 0);
}

TEST_CASE("15.4: workers of two hosts encrypt on both, or are told to") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const Home home;
  const std::string program =
      "echo \"asked: $DDPRUN_ENCRYPT_GRADIENTS\"; exec " + binary("summing_worker");
  {
    Process first(hosts.on(0, node(0, {"--encrypt-gradients"}, program)), home.variables());
    Variables by_variable = home.variables();
    by_variable["DDPRUN_ENCRYPT_GRADIENTS"] = "1";
    Process second(hosts.on(1, node(1, {}, program)), by_variable);
    const bool summing =
        first.wait_for_output("summing", 60s) && second.wait_for_output("summing", 60s);
    INFO(first.output() << second.output());
    REQUIRE(summing);
    CHECK(contains(first.output(), "asked: 1"));
    CHECK(contains(second.output(), "asked: 1"));
  }
  Process first(hosts.on(0, node(0, {"--encrypt-gradients"}, program)), home.variables());
  Process second(hosts.on(1, node(1, {}, program)), home.variables());
  const auto one = first.wait(60s);
  const auto two = second.wait(60s);
  INFO(one.output << two.output);
  CHECK(one.status != 0);
  CHECK(two.status != 0);
  CHECK(contains(one.output + two.output, "give --encrypt-gradients on all nodes, or on none"));
}

TEST_CASE("15.4: nothing is encrypted without a secret") {
  const auto refused = run(launch({"--auth", "none", "--encrypt-gradients"}) + shell("true"), 60s);
  INFO(refused.output);
  CHECK(refused.status == 2);
  CHECK(contains(refused.output, "--encrypt-gradients: with --auth none"));

  // It does not wait for rank 0, which nobody starts here.
  const auto by_hand = run(
      shell("export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 DDPRUN_ENCRYPT_GRADIENTS=1 MASTER_PORT=" +
            std::to_string(free_port()) + "; RANK=1 LOCAL_RANK=1 exec " + binary("summing_worker")),
      60s);
  INFO(by_hand.output);
  CHECK(by_hand.status > 0);
  CHECK(contains(by_hand.output, "is to encrypt the gradients and has no key"));
}

TEST_CASE("a stranger's hello is answered with one line that tells nothing of the job") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const Home home;
  Process first(hosts.on(0, node(0, {"--rdzv-id", "salary-model"})), home.variables());
  REQUIRE(first.wait_for_output("waiting for node 1", 20s));

  const auto told =
      run(hosts.on(1, {"bash", "-c",
                       "exec 3<>/dev/tcp/10.77.0.1/29500; echo '{\"type\":\"hello\",\"version\":1,"
                       "\"run_id\":\"x\",\"node_id\":\"y\",\"nproc\":1}' >&3; head -n 1 <&3"}),
          20s);
  INFO(told.output);
  CHECK(contains(told.output, "\"refused\""));
  CHECK(contains(told.output, "this job needs its secret"));
  CHECK_FALSE(contains(told.output, "salary-model"));
}

TEST_CASE(
    "a job of --auth none runs without a secret, and says once on each node what that means") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const Home home;
  Process first(hosts.on(0, node(0, {"--auth", "none"})), home.variables());
  Variables by_variable = home.variables();
  by_variable["DDPRUN_AUTH"] = "none";
  Process second(hosts.on(1, node(1)), by_variable);
  const auto one = first.wait(20s);
  const auto two = second.wait(20s);

  INFO(one.output << two.output);
  CHECK(one.status == 0);
  CHECK(two.status == 0);
  CHECK(count_of(one.output, "--auth=none: whoever reaches 10.77.0.1 port 29500 can join") == 1);
  CHECK(count_of(two.output, "DDPRUN_AUTH=none: whoever reaches 10.77.0.1") == 1);
  CHECK_FALSE(std::filesystem::exists(home.secret_file()));
}

TEST_CASE("a job on a loopback address makes no secret, unless it is asked for one") {
  const Home home;
  const std::uint16_t port = free_port();
  // Nor is OpenSSL opened: it is not what a local job waits for.
  const auto program = shell("grep -q 'ssl' /proc/$PPID/maps && echo opened; true");
  Process first(launch_node(0, port, {}, program), home.variables());
  Process second(launch_node(1, port, {}, {"/bin/true"}), home.variables());
  const auto one = first.wait(30s);
  CHECK(one.status == 0);
  CHECK_FALSE(contains(one.output, "opened"));
  CHECK(second.wait(30s).status == 0);
  CHECK_FALSE(std::filesystem::exists(home.secret_file()));

  const std::uint16_t another = free_port();
  Process tunnelled(launch_node(0, another, {"--auth", "secret"}, {"/bin/true"}), home.variables());
  Process through(launch_node(1, another, {"--auth", "secret"}, {"/bin/true"}), home.variables());
  CHECK(tunnelled.wait(30s).status == 0);
  CHECK(through.wait(30s).status == 0);
  CHECK(std::filesystem::exists(home.secret_file()));
}

TEST_CASE("15.6: a node without the copy of OpenSSL uses the machine's, and meets one with it") {
  const Home home;
  const TemporaryFolder alone;
  std::filesystem::copy_file(binary("ddprun"), alone / "ddprun");
  const std::uint16_t port = free_port();
  const auto opened = [&](int rank) {
    return launch_node(rank, port, {"--auth", "secret"},
                       shell("grep -o 'lib[a-z_]*ssl[.a-z0-9]*' /proc/$PPID/maps | sort -u"));
  };
  std::vector<std::string> without = opened(1);
  without[0] = alone / "ddprun";
  Process first(opened(0), home.variables());
  Process second(without, home.variables());
  const auto one = first.wait(30s);
  const auto two = second.wait(30s);

  INFO(one.output << two.output);
  CHECK(one.status == 0);
  CHECK(two.status == 0);
#ifdef DDPRUN_OPENSSL_COPY_BUILT
  CHECK(contains(one.output, "libddprun_openssl.so"));
  CHECK_FALSE(contains(one.output, "libssl.so.3"));
#endif
  CHECK(contains(two.output, "libssl.so.3"));
  CHECK_FALSE(contains(two.output, "libddprun_openssl.so"));
}

#ifdef DDPRUN_OPENSSL_COPY_BUILT
TEST_CASE("15.6: a copy of OpenSSL that another user has put beside ddprun is not opened") {
  if (::geteuid() != 0) DDPRUN_SKIP("to give a file away one must be root");
  const Home home;
  const TemporaryFolder anybodys;
  for (const char* file : {"ddprun", "libddprun_openssl.so"}) {
    std::filesystem::copy_file(binary(file), anybodys / file);
  }
  const std::uint16_t port = free_port();
  const auto opened = [&](int rank) {
    auto command =
        launch_node(rank, port, {"--auth", "secret"},
                    shell("grep -o 'lib[a-z_]*ssl[.a-z0-9]*' /proc/$PPID/maps | sort -u"));
    command[0] = anybodys / "ddprun";
    return command;
  };
  const auto output_of_both = [&] {
    Process first(opened(0), home.variables());
    Process second(opened(1), home.variables());
    const auto one = first.wait(30s), two = second.wait(30s);
    CHECK(one.status == 0);
    CHECK(two.status == 0);
    return one.output + two.output;
  };

  CHECK(contains(output_of_both(), "libddprun_openssl.so"));
  REQUIRE(::chown((anybodys / "libddprun_openssl.so").c_str(), 54'321, 54'321) == 0);
  REQUIRE(::chmod(anybodys.path().c_str(), 01777) == 0);
  CHECK_FALSE(contains(output_of_both(), "libddprun_openssl.so"));
}
#endif

TEST_CASE("15.6: the copy does not stand in for an OpenSSL that the machine does not have") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const Home home;
  std::string words = "exec";
  for (const std::string& word : launch_node(0, free_port(), {"--auth", "secret"}, {"/bin/true"})) {
    words += " " + word;
  }
  // An empty file in the place of each library, in a mount namespace of its own.
  const auto told = run({"unshare", "-m", "sh", "-c",
                         "for each in $(find -L /lib /usr/lib /lib64 /usr/lib64 -name "
                         "'libssl.so.*' 2>/dev/null); do mount --bind /dev/null $each; done; " +
                             words},
                        30s, home.variables());
  INFO(told.output);
  CHECK(told.status != 0);
  CHECK(contains(told.output, "needs OpenSSL (3, 4 or 1.1.1), which cannot be opened ("));
  CHECK(contains(told.output, "or run without a secret: --auth none"));
}

TEST_CASE("a secret comes on stdin, and from a file that the variable names") {
  const Home home;
  const std::string file = home.folder / "key";
  std::ofstream(file) << std::string(64, 'k') << '\n';
  REQUIRE(::chmod(file.c_str(), 0600) == 0);
  const std::uint16_t port = free_port();
  Variables by_variable = home.variables();
  by_variable["DDPRUN_SECRET_FILE"] = file;
  Process first(launch_node(0, port, {"--auth", "secret"}, {"/bin/true"}), by_variable);
  std::string piped = "exec < " + file + "; exec";
  for (const std::string& word :
       launch_node(1, port, {"--auth", "secret", "--secret-file", "-"}, {"/bin/true"})) {
    piped += " " + word;
  }
  Process second(shell(piped), home.variables());

  CHECK(first.wait(30s).status == 0);
  const auto two = second.wait(30s);
  INFO(two.output);
  CHECK(two.status == 0);
  CHECK_FALSE(std::filesystem::exists(home.secret_file()));
}

// Which a program might print, or take for its input.
TEST_CASE("a secret on stdin is no worker's input, also where the job needs none") {
  const Home home;
  const std::string file = home.folder / "key";
  std::ofstream(file) << std::string(64, 'k') << '\n';
  for (const std::string auth : {"secret", "none"}) {
    std::string words = "exec < " + file + "; exec";
    for (const std::string& word : launch({"--standalone", "--auth", auth, "--secret-file", "-"})) {
      words += " " + word;
    }
    const auto told =
        run(shell(words + " /bin/sh -c 'echo \"input: $(cat)\"'"), 20s, home.variables());
    INFO(told.output);
    CHECK(told.status == 0);
    CHECK(contains(told.output, "input: \n"));
    CHECK_FALSE(contains(told.output, "kkk"));
  }
}

TEST_CASE("15.5: ssh hands a node the secret through its stdin") {
  if (::geteuid() != 0) DDPRUN_SKIP("sshd needs root");
  if (run(shell("PATH=$PATH:/usr/sbin; command -v sshd && command -v ssh && command -v ssh-keygen"),
          20s)
          .status != 0) {
    DDPRUN_SKIP("there is no sshd (apt-get install openssh-server)");
  }
  const Home home;
  const TemporaryFolder folder;
  const std::uint16_t ssh_port = free_port();
  // A /run of its own: sshd insists on a folder there that nobody else can write.
  const std::string serve = "cd " + folder.path() +
                            " && for k in host user; do ssh-keygen -q -t ed25519 -N '' -f $k; done "
                            "&& cp user.pub allowed && mount -t tmpfs none /run && mkdir -m 755 "
                            "/run/sshd && echo serves && "
                            "exec /usr/sbin/sshd -D -e -f /dev/null -p " +
                            std::to_string(ssh_port) + " -h " + folder / "host" +
                            " -o ListenAddress=127.0.0.1 -o PidFile=none -o StrictModes=no "
                            "-o AuthorizedKeysFile=" +
                            folder / "allowed";
  Process sshd({"unshare", "--mount", "bash", "-c", serve});
  if (!sshd.wait_for_output("Server listening on 127.0.0.1", 20s)) {
    DDPRUN_SKIP("sshd does not run here: " + sshd.output());
  }
  const std::string file = folder / "key";
  std::ofstream(file) << std::string(64, 'k') << '\n';
  REQUIRE(::chmod(file.c_str(), 0600) == 0);
  const std::uint16_t port = free_port();
  Process first(launch_node(0, port, {"--auth", "secret", "--secret-file", file}, {"/bin/true"}),
                home.variables());
  std::string there =
      "ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o "
      "UserKnownHostsFile=/dev/null -i " +
      folder / "user" + " -p " + std::to_string(ssh_port) +
      " 127.0.0.1 env XDG_CONFIG_HOME=/nonexistent";
  for (const std::string& word :
       launch_node(1, port, {"--auth", "secret", "--secret-file", "-"}, {"/bin/true"})) {
    there += " " + word;
  }
  const auto two = run(shell(there + " < " + file), 60s, home.variables());
  INFO(two.output << sshd.output());
  CHECK(two.status == 0);
  CHECK(first.wait(30s).status == 0);
  CHECK_FALSE(contains(two.output + sshd.output(), std::string(64, 'k')));
}

TEST_CASE("a secret file that others can read ends the launch before anything is said") {
  const Home home;
  const std::string file = home.folder / "key";
  std::ofstream(file) << std::string(64, 'k') << '\n';
  REQUIRE(::chmod(file.c_str(), 0644) == 0);
  const auto result =
      run(launch_node(1, free_port(), {"--auth", "secret", "--secret-file", file}, {"/bin/true"}),
          20s, home.variables());
  INFO(result.output);
  CHECK(result.status == 2);
  CHECK(contains(result.output, "chmod 600"));
}

TEST_CASE("15.3: with --store-auth the store serves ddprun's workers alone") {
  const Home home;
  const std::vector<std::string> options = {"--store-auth", "--nproc-per-node", "2"};
  Process job(launch(options) + std::vector<std::string>{binary("summing_worker")},
              home.variables());
  const bool summing = job.wait_for_output("summing", 60s);
  INFO(job.output());
  CHECK(summing);

  // What torch's client says first, and then a question.
  const auto other = run(
      launch(options) + std::vector<std::string>{"bash", "-c",
                                                 "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && "
                                                 R"(printf '\000\316\367\205\074\007' >&3 && )"
                                                 "test -z \"$(head -c 8 <&3)\" && echo refused"},
      60s, home.variables());
  INFO(other.output);
  CHECK(count_of(other.output, "refused") >= 2);

  const auto without = run(launch({"--auth", "none", "--store-auth"}) + shell("true"), 60s);
  INFO(without.output);
  CHECK(without.status != 0);
  CHECK(contains(without.output, "--store-auth: with --auth none"));

  // Not left to be killed with its guard, which would leave a semaphore set on this machine.
  job.send_signal(SIGTERM);
  CHECK(job.wait(60s).ended);
}
