// Jobs of two nodes: two agents on one machine, as two machines would run them.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/testing/catch.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::testing;

namespace {

// Holds a port for as long as it lives.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;  // On all interfaces, as a stranger's server would be.
    socklen_t length = sizeof address;
    REQUIRE(::bind(socket_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(::listen(socket_, 1) == 0);
    REQUIRE(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { ::close(socket_); }
  std::uint16_t port() const { return port_; }

 private:
  int socket_;
  std::uint16_t port_ = 0;
};

std::string this_host() {
  std::array<char, 256> name{};
  REQUIRE(::gethostname(name.data(), name.size() - 1) == 0);
  return name.data();
}

// A node of a job that meets at `endpoint`, whose host is node 0; `conf`: of --rdzv-conf.
std::vector<std::string> meeting_node(bool is_host, const std::string& nnodes,
                                      const std::string& endpoint, const std::string& conf,
                                      const std::vector<std::string>& rest) {
  return launch(std::vector<std::string>{
                    "--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint,
                    "--rdzv-conf",
                    conf + ",keep_alive_interval=0.2,is_host=" + (is_host ? "true" : "false")} +
                rest);
}

const std::vector<std::string> own_namespaces = {"unshare", "--mount", "--net"};

// Not even root may everywhere: not in a container without the capability, nor in a chroot.
bool may_have_own_hosts() {
  return run(own_namespaces + std::vector<std::string>{"ip", "link", "set", "lo", "up"}, 20s)
             .status == 0;
}

constexpr const char* needs_own_hosts =
    "this user may not make namespaces of mounts and the network, for a hosts file of its own";

// bash, in a folder of its own that has the file `hosts`, which is this machine's for it alone; its
// network is a loopback device.
ProcessResult run_with_own_hosts(const std::string& script) {
  const TemporaryFolder folder;
  const std::string start =
      "cd \"$1\"; ip link set lo up; cp /etc/hosts hosts; mount --bind hosts /etc/hosts\n";
  return run(own_namespaces + std::vector<std::string>{"/bin/bash", "-ec", start + script,
                                                       "own-hosts", folder.path()},
             60s, {{"DDPRUN", binary("ddprun")}});
}

}  // namespace

TEST_CASE("two nodes form one world with consecutive ranks") {
  const std::uint16_t port = free_port();
  const auto program = shell(
      "echo \"node $GROUP_RANK of $GROUP_WORLD_SIZE rank $RANK of $WORLD_SIZE "
      "store $MASTER_ADDR:$MASTER_PORT\"");
  Process host(launch_node(0, port, {"--nproc_per_node", "2"}, program));
  Process other(launch_node(1, port, {"--nproc_per_node", "2"}, program));

  const auto host_result = host.wait(30s);
  const auto other_result = other.wait(30s);

  INFO(host_result.output << other_result.output);
  CHECK(host_result.status == 0);
  CHECK(other_result.status == 0);
  CHECK(contains(host_result.output, "node 0 of 2 rank 0 of 4"));
  CHECK(contains(host_result.output, "node 0 of 2 rank 1 of 4"));
  CHECK(contains(other_result.output, "node 1 of 2 rank 2 of 4"));
  CHECK(contains(other_result.output, "node 1 of 2 rank 3 of 4"));
  CHECK(contains(other_result.output, "store 127.0.0.1:" + std::to_string(port)));
}

TEST_CASE("the node that starts first waits for the host") {
  const std::uint16_t port = free_port();
  Process other(launch_node(1, port, {}, {"/bin/true"}));
  Process host(launch_node(0, port, {}, {"/bin/true"}));

  CHECK(other.wait(30s).status == 0);
  CHECK(host.wait(30s).status == 0);
}

TEST_CASE("a worker killed on node 1 restarts both nodes together") {
  const std::uint16_t port = free_port();
  const auto program = shell(read_pid +
                             "echo \"up attempt $TORCHELASTIC_RESTART_COUNT rank $RANK pid $pid\"; "
                             "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; exec sleep 300");
  Process host(launch_node(0, port, {"--max-restarts", "1"}, program));
  Process other(launch_node(1, port, {"--max-restarts", "1"}, program));
  REQUIRE(host.wait_for_output("up attempt 0 rank 0", 30s));
  REQUIRE(other.wait_for_output("up attempt 0 rank 1", 30s));

  ::kill(number_after(other.output(), "up attempt 0 rank 1 pid "), SIGKILL);

  const auto host_result = host.wait(30s);
  const auto other_result = other.wait(30s);
  INFO(host_result.output << other_result.output);
  CHECK(host_result.status == 0);
  CHECK(other_result.status == 0);
  CHECK(contains(host_result.output, "up attempt 1 rank 0"));
  CHECK(contains(other_result.output, "up attempt 1 rank 1"));
}

TEST_CASE("without restarts both nodes end with the cause's code and name") {
  const std::uint16_t port = free_port();
  const auto program = shell(
      "echo \"up rank $RANK\"; if [ $RANK = 1 ]; then read line < \"$GATE\"; "
      "echo 'bad batch' >&2; exit 42; fi; exec sleep 300");
  TemporaryFolder folder;
  const std::string gate = folder / "gate";
  REQUIRE(run({"mkfifo", gate}, 10s).status == 0);
  Process host(launch_node(0, port, {}, program));
  Process other(launch_node(1, port, {}, program), {{"GATE", gate}});
  REQUIRE(host.wait_for_output("up rank 0", 30s));
  REQUIRE(other.wait_for_output("up rank 1", 30s));

  REQUIRE(run(shell("echo go > " + gate), 10s).status == 0);

  const auto host_result = host.wait(30s);
  const auto other_result = other.wait(30s);
  INFO("host:\n" << host_result.output << "other:\n" << other_result.output);
  CHECK(host_result.status == 42);
  CHECK(other_result.status == 42);
  CHECK(contains(host_result.output, "rank 1"));
  CHECK(contains(other_result.output, "rank 1"));
}

TEST_CASE("a node whose launcher is killed ends the other node within seconds") {
  const std::uint16_t port = free_port();
  const auto program = shell("echo \"up rank $RANK\"; exec sleep 300");
  Process host(launch_node(0, port, {}, program));
  Process other(launch_node(1, port, {}, program));
  REQUIRE(host.wait_for_output("up rank 0", 30s));
  REQUIRE(other.wait_for_output("up rank 1", 30s));
  const std::vector<int> workers = descendants_of(other.pid());

  other.send_signal(SIGKILL);

  const auto host_result = host.wait(15s);
  INFO(host_result.output);
  CHECK(host_result.ended);
  CHECK(host_result.status != 0);
  CHECK(wait_until_gone(workers, 5s));
}

TEST_CASE("14.8: below MIN the report names the cause, the wait, and all who did not come back") {
  const bool elastic = GENERATE(true, false);
  const std::string join_s = patience_seconds(elastic ? 3 : 2);
  const int nodes = elastic ? 3 : 2;
  const std::uint16_t port = free_port();
  const TemporaryFolder folder;
  const auto node = [&](int rank) {
    return launch({"--nnodes", elastic ? "3:4" : "2", "--node-rank", std::to_string(rank),
                   "--rdzv-backend", elastic ? "c10d" : "static", "--rdzv-endpoint",
                   "127.0.0.1:" + std::to_string(port), "--rdzv-conf",
                   "takeover=false,last_call_timeout=0,join_timeout=" + join_s, "--max-restarts",
                   "3", "--report", folder.path() + "/" + std::to_string(rank), "sh", "-c",
                   "echo up; exec sleep 300"});
  };
  Process host(node(0));
  // Of an elastic job on one machine whoever is first at the port hosts it.
  REQUIRE(host.wait_for_output("waiting for", 30s));
  std::vector<std::unique_ptr<Process>> others;
  for (int i = 1; i < nodes; ++i) others.push_back(std::make_unique<Process>(node(i)));
  REQUIRE(host.wait_for_output("up", 30s));
  for (auto& other : others) REQUIRE(other->wait_for_output("up", 30s));

  for (auto& other : others) other->send_signal(SIGKILL);

  const auto result = host.wait(60s);
  INFO(result.output);
  CHECK(result.status == 75);
  CHECK(contains(result.output, " was lost: "));  // As the kernel ended its connection.
  CHECK(contains(result.output, "\n  then "));
  const std::string why = content_of(folder.path() + "/0");
  INFO(why);
  CHECK(contains(why, elastic ? "2 more nodes did not join within " + join_s + " s"
                              : "node 1 did not join within " + join_s + " s"));
  for (int i = 1; i < nodes; ++i) {
    CHECK(contains(why, "; node " + std::to_string(i) + " (" + this_host() + ") was lost"));
  }
}

TEST_CASE("16.1: a node that was lost for its silence takes its place again when it wakes") {
  const std::uint16_t port = free_port();
  const auto program = shell(
      "echo \"up attempt $TORCHELASTIC_RESTART_COUNT rank $RANK\"; "
      "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; exec sleep 300");
  const std::vector<std::string> options = {"--max-restarts", "1", "--rdzv-conf",
                                            "heartbeat_timeout=1,keep_alive_interval=0.2"};
  Process host(launch_node(0, port, options, program));
  Process other(launch_node(1, port, options, program));
  REQUIRE(host.wait_for_output("up attempt 0 rank 0", 30s));
  REQUIRE(other.wait_for_output("up attempt 0 rank 1", 30s));

  other.send_signal(SIGSTOP);
  REQUIRE(host.wait_for_output("nothing heard from it for", 30s));
  other.send_signal(SIGCONT);

  const auto host_result = host.wait(30s);
  const auto other_result = other.wait(30s);
  INFO("host:\n" << host_result.output << "other:\n" << other_result.output);
  CHECK(host_result.status == 0);
  CHECK(other_result.status == 0);
  CHECK(contains(other_result.output, "up attempt 1 rank 1"));
}

TEST_CASE("a node comes back to a node 0 that was started again, whose attempts begin anew") {
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const TemporaryFolder folder;
  const std::string second_time = folder / "second_time";
  const auto node = [&](bool is_host) {
    return meeting_node(
        is_host, "2", endpoint, "heartbeat_timeout=1",
        std::vector<std::string>{"--log-dir", folder / "logs", "--tee", "1"} +
            shell("echo up rank $RANK; test -e " + second_time + " || exec sleep 300"));
  };
  Process host(node(true));
  Process other(node(false));
  REQUIRE(host.wait_for_output("up rank 0", 30s));
  REQUIRE(other.wait_for_output("up rank 1", 30s));

  host.send_signal(SIGSTOP);
  REQUIRE(other.wait_for_output("lost the coordinator", 30s));
  std::ofstream(second_time) << "";
  host.send_signal(SIGKILL);
  host.wait(30s);
  Process again(node(true));

  const auto other_result = other.wait(60s);
  const auto again_result = again.wait(60s);
  INFO("again:\n" << again_result.output << "other:\n" << other_result.output);
  CHECK(other_result.status == 0);
  CHECK(again_result.status == 0);
  std::vector<std::string> attempts;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "logs")) {
    if (entry.path().filename().string().rfind("attempt_", 0) == 0) {
      attempts.push_back(entry.path().filename());
    }
  }
  std::sort(attempts.begin(), attempts.end());
  CHECK(attempts == std::vector<std::string>{"attempt_0", "attempt_0", "attempt_0", "attempt_0.2"});
}

TEST_CASE("a job is handed over where the nodes know node 0 by its name") {
  const std::string endpoint = "localhost:" + std::to_string(free_port());
  const auto node = [&](bool is_host) {
    return meeting_node(is_host, "1:3", endpoint, "heartbeat_timeout=2,last_call_timeout=1",
                        shell("echo up rank $RANK of $WORLD_SIZE; test $WORLD_SIZE = 1 && "
                              "test $TORCHELASTIC_RESTART_COUNT != 0 && exit 0; exec sleep 300"));
  };
  Process host(node(true));
  Process other(node(false));
  REQUIRE(host.wait_for_output("up rank 0 of 2", 60s));
  REQUIRE(other.wait_for_output("up rank 1 of 2", 60s));

  host.send_signal(SIGTERM);

  const auto host_result = host.wait(60s);
  const auto other_result = other.wait(60s);
  INFO("host:\n" << host_result.output << "other:\n" << other_result.output);
  CHECK(other_result.status == 0);
  CHECK(contains(other_result.output, "up rank 0 of 1"));
}

TEST_CASE("a job goes on without its node 0 where the nodes announce themselves by name") {
  const std::string endpoint = "localhost:" + std::to_string(free_port());
  const auto node = [&](bool is_host) {
    return meeting_node(
        is_host, "2:3", endpoint, "heartbeat_timeout=2,last_call_timeout=1",
        std::vector<std::string>{"--local-addr", "localhost", "--max-restarts", "1"} +
            shell("echo up rank $RANK of $WORLD_SIZE at $MASTER_ADDR; test $WORLD_SIZE = 2 && "
                  "test $TORCHELASTIC_RESTART_COUNT != 0 && exit 0; exec sleep 300"));
  };
  Process host(node(true));
  Process second(node(false));
  Process third(node(false));
  for (Process* each : {&host, &second, &third}) REQUIRE(each->wait_for_output(" of 3 at ", 60s));

  host.send_signal(SIGKILL);

  for (Process* each : {&second, &third}) {
    const auto result = each->wait(60s);
    INFO(result.output);
    CHECK(result.status == 0);
    CHECK(contains(result.output, " of 2 at localhost"));
  }
}

TEST_CASE("the loss of the endpoint's host ends the other node with status 72") {
  const std::uint16_t port = free_port();
  const auto program = shell("echo \"up rank $RANK\"; exec sleep 300");
  Process host(launch_node(0, port, {}, program));
  Process other(launch_node(1, port, {}, program));
  REQUIRE(host.wait_for_output("up rank 0", 30s));
  REQUIRE(other.wait_for_output("up rank 1", 30s));
  const std::vector<int> workers = descendants_of(other.pid());

  host.send_signal(SIGKILL);

  const auto result = other.wait(20s);
  INFO(result.output);
  CHECK(result.status == 72);
  CHECK(wait_until_gone(workers, 5s));
}

TEST_CASE("a port in use is named") {
  const TakenPort taken;
  const auto result = run(launch_node(0, taken.port(), {}, {"/bin/true"}), 20s);

  INFO(result.output);
  CHECK(result.ended);
  CHECK(result.status != 0);
  CHECK(contains(result.output, std::to_string(taken.port())));
  CHECK(contains(result.output, "in use"));
}

TEST_CASE("a host that does not resolve is named, until the time to join is up") {
  // A label longer than 63 characters is no host name, so no name server is asked.
  const std::string host = std::string(64, 'h') + ".invalid";
  const auto result =
      run(launch({"--nnodes", "2", "--node-rank", "1", "--master-addr", host, "--master-port",
                  "29511", "--rdzv-conf", "join_timeout=1", "/bin/true"}),
          20s);

  INFO(result.output);
  CHECK(result.status == 71);
  CHECK(contains(result.output, host));
  CHECK(contains(result.output, "resolve"));
}

// The name is learnt of once a launcher has said that it does not resolve: static node 0 as well as
// one that cannot know whether it hosts. In namespaces of mounts and the network, where no name
// server answers and no file of this machine changes.
TEST_CASE("a name that resolves late is waited for by who hosts it, too") {
  if (!may_have_own_hosts()) DDPRUN_SKIP(needs_own_hosts);
  const auto result = run_with_own_hosts(
      "worker='echo up $RANK of $WORLD_SIZE'\n"
      "static() { $DDPRUN --nnodes 2 --node-rank $1 --master-addr late.invalid --master-port 29511"
      " --auth none sh -c \"$worker\" >$1 2>&1; }\n"
      "elastic() { $DDPRUN --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint late.invalid:29512"
      " --rdzv-conf last_call_timeout=1 --auth none sh -c \"$worker\" >2 2>&1; }\n"
      "static 0 & zero=$!; static 1 & one=$!; elastic & two=$!\n"
      "for node in 0 1 2; do until grep -q 'cannot resolve' $node; do sleep 0.05; done; done\n"
      "echo '127.0.0.1 late.invalid' >>hosts\n"
      "status=0; for node in $zero $one $two; do wait $node || status=$?; done\n"
      "tail -n 99 0 1 2; exit $status");
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "up 0 of 2"));
  CHECK(contains(result.output, "up 1 of 2"));
  CHECK(contains(result.output, "up 0 of 1"));
}

TEST_CASE("nodes meet at a localhost that is ::1 alone") {
  if (!may_have_own_hosts()) DDPRUN_SKIP(needs_own_hosts);
  const auto result = run_with_own_hosts(
      "echo '::1 localhost' >hosts\n"
      "node() { $DDPRUN --nnodes 2 --node-rank $1 --master-addr localhost --master-port 29511"
      " --rdzv-conf join_timeout=20 sh -c 'echo up $RANK of $WORLD_SIZE at $MASTER_ADDR'; }\n"
      "node 0 & zero=$!; node 1 & one=$!\n"
      "status=0; for node in $zero $one; do wait $node || status=$?; done; exit $status");
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "up 0 of 2 at localhost"));
  CHECK(contains(result.output, "up 1 of 2 at localhost"));
}

// As a name server's that still has the address of a pod that was there before: none that this
// machine has, and one that it cannot reach.
TEST_CASE("a name that was another machine's is looked up again before each try") {
  if (!may_have_own_hosts()) DDPRUN_SKIP(needs_own_hosts);
  const auto result = run_with_own_hosts(
      "echo '192.0.2.1 moved.invalid' >>hosts\n"
      "node() { $DDPRUN --nnodes $2 --rdzv-backend c10d --rdzv-endpoint moved.invalid:$3"
      " --rdzv-conf join_timeout=30,last_call_timeout=1,heartbeat_timeout=2"
      " --auth none sh -c 'echo up $RANK of $WORLD_SIZE at $MASTER_ADDR' >$1 2>&1; }\n"
      "node 0 2:2 29511 & zero=$!; node 1 2:2 29511 & one=$!\n"  // One opens it, and one comes.
      "node 2 1:3 29512 & two=$!\n"                              // Another one could take over.
      "for node in 0 1 2; do until grep -qs 'waiting for the endpoint' $node; do sleep 0.05; "
      "done; "
      "done\n"
      "grep -v moved.invalid hosts >known; echo '127.0.0.1 moved.invalid' >>known\n"
      "cat known >hosts\n"
      "status=0; for node in $zero $one $two; do wait $node || status=$?; done\n"
      "tail -n 99 0 1 2; exit $status");
  INFO(result.output);
  CHECK(result.status == 0);
  CHECK(contains(result.output, "up 0 of 2 at moved.invalid"));
  CHECK(contains(result.output, "up 1 of 2 at moved.invalid"));
  CHECK(contains(result.output, "up 0 of 1 at moved.invalid"));
}

TEST_CASE("a name that resolves late leaves the rest of the time for the connection") {
  if (!may_have_own_hosts()) DDPRUN_SKIP(needs_own_hosts);
  const auto result = run_with_own_hosts(
      "$DDPRUN --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint late.invalid:29512"
      " --rdzv-conf join_timeout=600 --auth none true >said 2>&1 & node=$!\n"
      "until grep -qs 'cannot resolve' said; do sleep 0.05; done\n"
      "echo '192.0.2.1 late.invalid' >>hosts\n"
      "until grep -qs 'waiting for the endpoint' said; do sleep 0.05; done\n"
      "kill $node; wait $node || true; cat said");
  INFO(result.output);
  CHECK(result.status == 0);
  // It looks a second time a second later.
  CHECK(contains(result.output, ", 0 s of 5"));
  CHECK_FALSE(contains(result.output, "of 600 s"));
}

TEST_CASE("a peer that never comes ends the wait with status 71 and says who is missing") {
  const auto result =
      run(launch_node(0, free_port(), {"--rdzv-conf", "join_timeout=1"}, {"/bin/true"}), 20s);

  INFO(result.output);
  CHECK(result.status == 71);
  CHECK(contains(result.output, "1 of 2"));
}

TEST_CASE("14.2: the node whose worker recorded its error first is blamed, though it ends later") {
  const TemporaryFolder folder;
  const std::uint16_t port = free_port();
  const std::string marker = folder / "recorded";
  Process host(launch_node(
      0, port, {},
      shell("printf '{\"message\": \"KeyError: labels\", \"timestamp\": %s}' \"$(date +%s)\" > "
            "\"$TORCHELASTIC_ERROR_FILE\"; touch " +
            marker + "; exec sleep 300")));
  // Its worker fails three seconds later by the clock: no way of a message takes that long.
  Process other(
      launch_node(1, port, {},
                  shell("until test -e " + marker +
                        "; do sleep 0.05; done; now() { date +%s; }; since=$(now); "
                        "until test $(now) -ge $((since + 3)); do sleep 0.1; done; exit 6")));

  const auto host_result = host.wait(60s);
  const auto other_result = other.wait(60s);

  INFO(host_result.output << other_result.output);
  CHECK(host_result.status == 6);  // Of the first process that ended.
  CHECK(other_result.status == 6);
  for (const std::string& output : {host_result.output, other_result.output}) {
    CHECK(contains(output, "FAILED: rank 0 (pid "));
    CHECK(contains(output, "KeyError: labels"));
    CHECK(contains(output, "rank 1 (pid "));
  }
}

// As when a JobSet restarts all pods in place: the containers of one host are gone at once, those
// of another take until the end of their grace, and the new ones have the same addresses and id.
TEST_CASE("17.3: launchers that start again do not meet those that still end") {
  const std::uint16_t port = free_port();
  const std::vector<std::string> options = {"--rdzv-id", "train", "--shutdown-timeout", "2"};
  const auto endless = shell("trap '' TERM; echo \"old rank $RANK\"; while :; do sleep 0.1; done");
  Process old_host(launch_node(0, port, options, endless));
  Process old_other(launch_node(1, port, options, endless));
  REQUIRE(old_host.wait_for_output("old rank 0", 30s));
  REQUIRE(old_other.wait_for_output("old rank 1", 30s));
  old_host.send_signal(SIGKILL);
  old_host.wait(20s);
  REQUIRE(old_other.wait_for_output("; stopping 1 worker", 20s));

  const auto program = shell(
      "echo \"new rank $RANK of $WORLD_SIZE, attempt "
      "$TORCHELASTIC_RESTART_COUNT\"");
  Process host(launch_node(0, port, options, program));
  Process other(launch_node(1, port, options, program));
  const auto host_result = host.wait(60s), other_result = other.wait(60s);
  const auto old_result = old_other.wait(30s);

  INFO(host_result.output << other_result.output << old_result.output);
  CHECK(host_result.status == 0);
  CHECK(other_result.status == 0);
  CHECK(contains(host_result.output, "new rank 0 of 2, attempt 0"));
  CHECK(contains(other_result.output, "new rank 1 of 2, attempt 0"));
  CHECK(old_result.status == 72);
  CHECK_FALSE(contains(old_result.output, "new rank"));
}
