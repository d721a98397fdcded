// A stranger on the network of a running job (attacker.py on a host of its own): what it may try,
// and what must hold. Issue 15's first paragraph is the list; docs/security.md the promise.
#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/endless_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/network_hosts.h"
#include "tests/testing/patience.h"

using namespace ddprun::testing;

namespace {

constexpr const char* port = "29500";
constexpr int stranger = 2;  // The host that has no part in the job.

const std::string program =
    read_pid + until_usr1("attempt $TORCHELASTIC_RESTART_COUNT: $RANK of $WORLD_SIZE, shell $pid;");

std::vector<std::string> attack(const NetworkHosts& hosts, const std::vector<std::string>& words,
                                const std::vector<std::string>& more = {}) {
  return hosts.on(stranger, std::vector<std::string>{"python3", "-B",
                                                     std::string(DDPRUN_SOURCE_DIR) +
                                                         "/tests/end_to_end/attacker.py",
                                                     words[0], NetworkHosts::address(0), port} +
                                std::vector<std::string>(words.begin() + 1, words.end()) + more);
}

// A number of /proc/PID/status.
long status_of(int pid, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stol(line.substr(name.size() + 1));
  }
  FAIL("no " << name << " of process " << pid);
  return 0;
}

long resident_kib(int pid) { return status_of(pid, "VmRSS"); }
long wakes(int pid) { return status_of(pid, "voluntary_ctxt_switches"); }

// First packets for whose connections the kernel of host 0 had no room: it answered them with SYN
// cookies, or dropped them where it has none. Most of a crowd of them.
long half_open_seen(const NetworkHosts& hosts) {
  const auto told =
      run(hosts.on(0, {"awk",
                       "$1 == \"TcpExt:\" && !head { head = split($0, name); next } "
                       "$1 == \"TcpExt:\" { for (i = 2; i <= NF; ++i) if (name[i] ~ "
                       "/^TCPReqQFull/) seen += $i } END { print \"seen=\" seen + 0 }",
                       "/proc/net/netstat"}),
          60s);
  return number_after(told.output, "seen=");
}

// Kills the node's only worker; between two attempts there is none.
void kill_worker(Process& node) {
  const std::string shell_file = std::filesystem::canonical("/bin/sh").filename();
  std::vector<int> found;
  REQUIRE(node.wait_until([&] {
    found = descendants_running(node.pid(), shell_file);
    return !found.empty();
  }));
  ::kill(found.front(), SIGKILL);
}

// The same until it has used the job's restart: an attempt that ends just then, because a stranger
// was put out of it, ends by itself.
void use_up_restart(Process& node) {
  const std::string shell_file = std::filesystem::canonical("/bin/sh").filename();
  int killed = 0;
  REQUIRE(node.wait_until([&] {
    const auto found = descendants_running(node.pid(), shell_file);
    if (!found.empty() && found.front() != killed) ::kill(killed = found.front(), SIGKILL);
    return contains(node.output(), "0 of 1 restarts left");
  }));
}

// What strangers may cost the launcher. AddressSanitizer keeps freed memory for a while, and
// ThreadSanitizer has more of its own for each byte.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr long memory_max_kib = 384 * 1'024;
#else
constexpr long memory_max_kib = 128 * 1'024;
#endif

}  // namespace

TEST_CASE(
    "15.6: strangers without the secret do not stop, join, blow up or fill the log of a job") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(3);
  const TemporaryFolder home;
  const std::map<std::string, std::string> variables = {{"XDG_CONFIG_HOME", home.path()}};
  const auto node = [&](int rank) {
    // Few descriptors: what a stranger could take would be missed at the next restart.
    return hosts.on(
        rank,
        std::vector<std::string>{"sh", "-c", "ulimit -n 4096; exec \"$0\" \"$@\""} +
            launch({"--nnodes", "2", "--node-rank", std::to_string(rank), "--master-addr",
                    NetworkHosts::address(0), "--max-restarts", "1", "--forward-signals", "USR1"}) +
            shell(program));
  };
  Process first(node(0), variables);
  Process second(node(1), variables);
  REQUIRE(first.wait_for_output("attempt 0: 0 of 2, shell ", 60s));
  REQUIRE(second.wait_for_output("attempt 0: 1 of 2, shell ", 60s));
  const long before_kib = resident_kib(first.pid());
  const long wakes_before = wakes(first.pid());

  Process silent(attack(hosts, {"silent", "24000"}, {"few=256", "stay=600"}));
  const bool held = silent.wait_for_output("ended ", 240s);
  INFO(silent.output());
  REQUIRE(held);
  CHECK(number_after(silent.output(), "open=") <= 256);
  // 50 times a second, and not for each of them.
  CHECK(wakes(first.pid()) - wakes_before < 12'000);
  kill_worker(first);
  CHECK(first.wait_for_output("attempt 1: 0 of 2, shell ", 60s));
  CHECK(second.wait_for_output("attempt 1: 1 of 2, shell ", 60s));

  const auto half_open = run(
      attack(hosts, {"half-open", "100000"}, {"from=" + NetworkHosts::address(stranger)}), 120s);
  INFO(half_open.output);
  CHECK(number_after(half_open.output, "ended sent=") > 90'000);
  CHECK(half_open_seen(hosts) > 20'000);  // A queue of theirs has 65,535 places, somaxconn willing.
  CHECK(contains(run(attack(hosts, {"slow-tls", "200"}), 120s).output, "ended "));
  // A byte a second: their time is over long before the record is.
  const auto slowest = run(attack(hosts, {"slow-tls", "50"}, {"pause=1", "bytes=100"}), 240s);
  INFO(slowest.output);
  CHECK(contains(slowest.output, "open=0"));
  CHECK(number_after(slowest.output, "bytes=") < 30);
  // Of 16 addresses at once, each as large as it may become: all the places that there are.
  for (int host = 0; host < 16; ++host) {
    REQUIRE(
        run(hosts.on(stranger, {"ip", "address", "add",
                                "10.77.0." + std::to_string(100 + host) + "/24", "dev", "eth0"}),
            60s)
            .status == 0);
  }
  const auto largest =
      run(hosts.on(stranger,
                   shell("ulimit -n 8000; exec python3 -B " DDPRUN_SOURCE_DIR
                         "/tests/end_to_end/attacker.py slow-tls " +
                         NetworkHosts::address(0) + " " + port +
                         " 3000 sources=10.77.0.100+16 size=16380 step=8192 bytes=16380 pause=0.5 "
                         "few=1024")),
          240s);
  INFO(largest.output);
  CHECK(number_after(largest.output, "opened=") == 3'000);
  CHECK(number_after(largest.output, "open=") <= 1'024);
  CHECK(status_of(first.pid(), "VmHWM") - before_kib < memory_max_kib);
  for (const char* kind : {"junk", "refused", "tls-shapes"}) {
    const auto heard = run(attack(hosts, {kind, "2"}), 60s);
    INFO(heard.output);
    CHECK(contains(heard.output, "ended connections="));
    // The first few at once, then four a second.
    if (std::string(kind) == "refused") CHECK(number_after(heard.output, "connections=") < 60);
    for (const char* secret : {"2:2", "static", "10.77.0.2", "attempt", "rank 1"}) {
      CHECK_FALSE(contains(heard.output, secret));
    }
  }
  CHECK(
      contains(run(attack(hosts, {"join", "2"}, {"nnodes=2:2", "elastic=0", "rank=1"}), 60s).output,
               "joined=0"));

  CHECK(status_of(first.pid(), "VmHWM") - before_kib < memory_max_kib);
  finish({&first, &second});
  // Of all that it has said.
  CHECK(first.output().size() < 32 * 1'024);
  CHECK_FALSE(contains(first.output(), "\033"));
  CHECK_FALSE(contains(first.output(), "attempt 2"));
}

TEST_CASE("15.6: who has the secret and lies is refused or put out, and the job goes on") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  if (run(shell("command -v openssl"), 20s).status != 0) DDPRUN_SKIP("there is no openssl");
  const NetworkHosts hosts(3);
  const TemporaryFolder home;
  const std::map<std::string, std::string> variables = {{"XDG_CONFIG_HOME", home.path()}};
  const auto node = [&](int host) {
    return hosts.on(host, launch({"--nnodes", "2:3", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                                  NetworkHosts::address(0) + ":" + port, "--max-restarts", "1",
                                  "--forward-signals", "USR1", "--rdzv-conf",
                                  "last_call_timeout=0,start_timeout=1"}) +
                              shell(program));
  };
  Process first(node(0), variables);
  REQUIRE(first.wait_for_output("waiting for", 60s));
  Process second(node(1), variables);
  REQUIRE(first.wait_for_output("attempt 0: 0 of 2, shell ", 60s));
  REQUIRE(second.wait_for_output("attempt 0: 1 of 2, shell ", 60s));
  const long before_kib = resident_kib(first.pid());
  const std::vector<std::string> known = {"secret=" + (home / "ddprun/secret"), "nnodes=2:3"};

  const auto sealed_by_nobody = run(attack(hosts, {"after-handshake", "5"}, known), 120s);
  INFO(sealed_by_nobody.output);
  CHECK(contains(sealed_by_nobody.output, "closed=5"));
  const auto updates = run(attack(hosts, {"key-updates", "3"}, known), 120s);
  INFO(updates.output);
  CHECK(number_after(updates.output, "sent=") > 0);
  const auto claims = run(attack(hosts, {"impossible"}, known), 240s);
  INFO(claims.output);
  CHECK(contains(claims.output, "welcomed=0"));
  CHECK(number_after(claims.output, "refusals=") > 0);
  const auto member = run(attack(hosts, {"lying-member", "2000"}, known), 120s);
  INFO(member.output);
  CHECK(contains(member.output, "began"));
  CHECK(contains(member.output, "ended sent="));

  first.read_pending();
  INFO(first.output());
  CHECK(resident_kib(first.pid()) - before_kib < 64 * 1'024);
  CHECK_FALSE(contains(first.output(), "0 of 1 restarts left"));
  // Whoever was put out did not take the restart that the job has.
  use_up_restart(first);
  first.send_signal(SIGTERM);
  CHECK(first.wait(60s).status == 75);
  CHECK(second.wait(60s).status == 75);
  // Of all that it has said.
  CHECK(first.output().size() < 64 * 1'024);
  CHECK_FALSE(contains(first.output(), "\033"));
}

TEST_CASE("15.6: with --auth none strangers can join, but not end the job or wear it out") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(3);
  const auto node = [&](int host) {
    return hosts.on(host, launch({"--nnodes", "2:3", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                                  NetworkHosts::address(0) + ":" + port, "--auth", "none",
                                  "--max-restarts", "1", "--forward-signals", "USR1", "--rdzv-conf",
                                  "last_call_timeout=0,start_timeout=1"}) +
                              shell(program));
  };
  Process first(node(0));
  Process second(node(1));
  REQUIRE(first.wait_for_output("attempt 0: 0 of 2, shell ", 60s));
  REQUIRE(second.wait_for_output("attempt 0: 1 of 2, shell ", 60s));
  const std::vector<std::string> guess = {"nnodes=2:3"};

  for (const char* then : {"drop", "leave", "fail"}) {
    const auto done = run(
        attack(hosts, {"join", "3"}, guess + std::vector<std::string>{std::string("then=") + then}),
        60s);
    INFO(done.output);
    CHECK(number_after(done.output, "joined=") >= 1);
  }
  first.read_pending();
  // Where join-and-leave had made 54 in 20 s.
  CHECK(count_of(first.output(), ": 0 of ") < 20);
  CHECK_FALSE(contains(first.output(), "0 of 1 restarts left"));

  // The one restart that it has is still its own.
  use_up_restart(first);
  first.send_signal(SIGTERM);  // The end, which the strangers had not brought.
  CHECK(first.wait(60s).status == 75);
  CHECK(second.wait(60s).status == 75);
  // Of all that it has said.
  CHECK_FALSE(contains(first.output(), "\033"));
  CHECK(first.output().size() < 64 * 1'024);
}

TEST_CASE("15.6: a member that is silent about its workers is put out, and a spare has no store") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(3);
  const auto node = [&](int host, const std::string& nodes) {
    return hosts.on(
        host, launch({"--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint",
                      NetworkHosts::address(0) + ":" + port, "--auth", "none", "--forward-signals",
                      "USR1", "--rdzv-conf", "last_call_timeout=0,start_timeout=1"}) +
                  shell(program));
  };
  SECTION("silent") {
    Process first(node(0, "1:2"));
    REQUIRE(first.wait_for_output("attempt 0: 0 of 1", 60s));
    const auto done = run(attack(hosts, {"mute", "60"}, {"nnodes=1:2"}), 120s);
    INFO(done.output);
    CHECK(contains(done.output, "did not say within 1 s that its workers have started"));
    REQUIRE(first.wait_for_output("attempt 2: 0 of 1", 60s));
    finish({&first});
  }
  SECTION("spare") {
    Process first(node(0, "1:1"));
    REQUIRE(first.wait_for_output("attempt 0: 0 of 1", 60s));
    const auto done = run(attack(hosts, {"spare", "10"}, {"nnodes=1:1"}), 60s);
    INFO(done.output);
    CHECK(contains(done.output, "store=refused"));
    finish({&first});
  }
}
