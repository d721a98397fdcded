// Jobs of several hosts: network namespaces on one switch (tests/testing/network_hosts.h).
#include <csignal>
#include <fstream>
#include <memory>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/endless_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/network_hosts.h"
#include "tests/testing/patience.h"
#include "tests/testing/temporary_folder.h"

using namespace ddprun::testing;

namespace {

constexpr const char* port = "29500";  // Every host has all of its ports to itself.

std::vector<std::string> node(int rank, const std::vector<std::string>& options,
                              const std::string& commands) {
  return launch({"--nnodes", "2", "--node-rank", std::to_string(rank), "--master-addr",
                 NetworkHosts::address(0)}) +
         options + shell(commands);
}

// Says "served" if the store at host 0 answers a PING, and "refused" if it closes the connection.
std::vector<std::string> store_client() {
  const std::string hello = R"(\000\316\367\205\074\015abcd)";  // VALIDATE, PING
  return {"bash", "-c",
          "exec 3<>/dev/tcp/" + NetworkHosts::address(0) + "/" + port + " && printf '" + hello +
              "' >&3 && test \"$(head -c 4 <&3)\" = abcd && echo served || echo refused"};
}

// One of `world` workers without a launcher, each on the host of its rank.
std::vector<std::string> summing_worker(const NetworkHosts& hosts, int rank, int world,
                                        int floats = 1) {
  return hosts.on(rank,
                  {"env", "RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(world),
                   "MASTER_ADDR=" + NetworkHosts::address(0), std::string("MASTER_PORT=") + port,
                   binary("summing_worker"), std::to_string(floats)});
}

// "rank 1 (pid 4127 on 10.77.0.2)", with the pid left out.
bool names_rank(const std::string& text, int rank) {
  return contains(text, "rank " + std::to_string(rank) + " (pid ") &&
         contains(text, " on " + NetworkHosts::address(rank) + ")");
}

}  // namespace

TEST_CASE(
    "14.8: where the loopback interface is down ddprun ends at once, and says how to start it") {
  const std::vector<std::string> network = {"unshare", "--net"};
  if (run(network + std::vector<std::string>{"true"}, 20s).status != 0) {
    DDPRUN_SKIP("this user may not make a network namespace (unshare --net)");
  }
  const auto worker = shell("echo worker ran");
  for (const auto& options :
       {std::vector<std::string>{"--standalone"}, {"--nproc-per-node", "2"}}) {
    const auto refused = run(network + launch(options) + worker, 20s);
    INFO(refused.output);
    CHECK(refused.status == 70);
    CHECK(contains(refused.output,
                   "this host cannot reach itself at 127.0.0.1 (Network is unreachable)"));
    CHECK(contains(refused.output, "`ip link set lo up`"));
    CHECK_FALSE(contains(refused.output, "waiting for"));
  }

  const auto mended = run(network + shell("ip link set lo up && exec \"$@\"") +
                              std::vector<std::string>{"sh"} + launch({"--standalone"}) + worker,
                          20s);
  INFO(mended.output);
  CHECK(mended.status == 0);
  CHECK(contains(mended.output, "worker ran"));
}

TEST_CASE("two hosts form one job, and a third one cannot use its store") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(3);
  const std::string program = until_usr1("up $RANK at $MASTER_ADDR:$MASTER_PORT");
  const std::vector<std::string> options = {"--forward-signals", "USR1"};
  Process first(hosts.on(0, node(0, options, program)));
  Process second(hosts.on(1, node(1, options, program)));
  REQUIRE(first.wait_for_output("up 0 at 10.77.0.1:29500", 20s));
  REQUIRE(second.wait_for_output("up 1 at 10.77.0.1:29500", 20s));

  CHECK(run(hosts.on(0, store_client()), 20s).output == "served\n");
  CHECK(run(hosts.on(1, store_client()), 20s).output == "served\n");
  CHECK(run(hosts.on(2, store_client()), 20s).output == "refused\n");
  CHECK(first.wait_for_output("its host has no part in this job: ddprun there joins it", 20s));

  finish({&first, &second});
}

TEST_CASE("each host's workers find the store as their host has found the endpoint") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const std::string program = until_usr1("up $RANK at $MASTER_ADDR:$MASTER_PORT");
  const auto of = [&](int host, const std::string& address, const std::vector<std::string>& more) {
    return hosts.on(host, launch({"--nnodes", "2", "--forward-signals", "USR1"}) +
                              std::vector<std::string>{"--master-addr", address} + more +
                              shell(program));
  };
  SECTION("static: the first one listens everywhere") {
    Process first(of(0, "0.0.0.0", {"--node-rank", "0"}));
    Process second(of(1, NetworkHosts::address(0), {"--node-rank", "1"}));
    REQUIRE(first.wait_for_output("up 0 at 10.77.0.1:29500", 20s));
    REQUIRE(second.wait_for_output("up 1 at 10.77.0.1:29500", 20s));
    CHECK(run(hosts.on(1, store_client()), 20s).output == "served\n");
    finish({&first, &second});
  }
  SECTION("elastic, with the address for others") {
    const std::vector<std::string> elastic = {"--rdzv-backend", "c10d", "--rdzv-conf"};
    Process first(of(
        0, "0.0.0.0",
        elastic + std::vector<std::string>{"is_host=1", "--local-addr", NetworkHosts::address(0)}));
    Process second(
        of(1, NetworkHosts::address(0), elastic + std::vector<std::string>{"is_host=0"}));
    REQUIRE(first.wait_for_output("up 0 at 10.77.0.1:29400", 20s));
    REQUIRE(second.wait_for_output("up 1 at 10.77.0.1:29400", 20s));
    finish({&first, &second});
  }
}

TEST_CASE("workers meet where node 0's own name is 127.0.1.1 on itself, as Debian sets it up") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const TemporaryFolder folder;
  std::ofstream(folder / "0") << "127.0.0.1 localhost\n127.0.1.1 node-zero\n";
  std::ofstream(folder / "1") << "127.0.0.1 localhost\n10.77.0.1 node-zero\n";
  const auto of = [&](int rank, const std::vector<std::string>& options) {
    // `ip netns exec` gives each host a mount namespace.
    const std::vector<std::string> own_names = {
        "sh", "-c", R"(mount --bind "$0" /etc/hosts && exec "$@")", folder / std::to_string(rank)};
    return hosts.on(rank, own_names + launch({"--nnodes", "2"}) + options +
                              std::vector<std::string>{binary("summing_worker")});
  };
  std::vector<std::string> first, second;
  SECTION("static") {
    first = {"--node-rank", "0", "--master-addr", "node-zero"};
    second = {"--node-rank", "1", "--master-addr", "node-zero"};
  }
  SECTION("elastic") {
    first = second = {"--rdzv-backend", "c10d", "--rdzv-endpoint", "node-zero"};
  }
  Process one(of(0, first));
  Process two(of(1, second));
  CHECK(one.wait_for_output("summing\n", 20s));
  CHECK(two.wait_for_output("summing\n", 20s));
  one.send_signal(SIGTERM);
  two.send_signal(SIGTERM);
  one.wait(20s);
  two.wait(20s);
}

TEST_CASE("workers meet where node 0's name has two addresses, and the others reach one of them") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const TemporaryFolder folder;
  std::ofstream(folder / "names")
      << "127.0.0.1 localhost\n10.99.0.1 two-ways\n10.77.0.1 two-ways\n";
  const auto of = [&](int rank, const std::string& first) {
    const std::vector<std::string> own_names = {
        "sh", "-c", first + R"(mount --bind "$0" /etc/hosts && exec "$@")", folder / "names"};
    return hosts.on(rank, own_names +
                              launch({"--nnodes", "2", "--node-rank", std::to_string(rank),
                                      "--master-addr", "two-ways"}) +
                              std::vector<std::string>{binary("summing_worker")});
  };
  Process one(of(0, "ip address add 10.99.0.1/32 dev lo && "));
  Process two(of(1, ""));
  CHECK(one.wait_for_output("summing\n", 20s));
  CHECK(two.wait_for_output("summing\n", 20s));
  one.send_signal(SIGTERM);
  two.send_signal(SIGTERM);
  one.wait(20s);
  two.wait(20s);
}

TEST_CASE("a host that the user named may use the store") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(3);
  const std::vector<std::string> options = {"--store-allow", "10.77.0.3/32"};
  Process first(hosts.on(0, node(0, options, "echo \"up $RANK\"; exec sleep 300")));
  Process second(hosts.on(1, node(1, options, "exec sleep 300")));
  REQUIRE(first.wait_for_output("up 0", 20s));

  CHECK(run(hosts.on(2, store_client()), 20s).output == "served\n");
}

TEST_CASE("a host whose plug is pulled ends the job on both sides with the loss named") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const std::vector<std::string> quick = {"--rdzv-conf",
                                          "heartbeat_timeout=0.6,keep_alive_interval=0.1"};
  Process first(hosts.on(0, node(0, quick, "echo \"up $RANK\"; exec sleep 300")));
  Process second(hosts.on(1, node(1, quick, "echo \"up $RANK\"; exec sleep 300")));
  REQUIRE(first.wait_for_output("up 0", 20s));
  REQUIRE(second.wait_for_output("up 1", 20s));
  hosts.set_plugged(1, false);

  const auto lost = first.wait(20s);
  INFO(lost.output);
  CHECK(lost.status == 74);
  CHECK(contains(lost.output, "nothing heard from it"));
  const auto alone = second.wait(20s);
  INFO(alone.output);
  CHECK(alone.status == 72);
}

TEST_CASE("a link that is cut between two workers alone is named by all of them, in seconds") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(3);
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < 3; ++rank) {
    workers.push_back(std::make_unique<Process>(summing_worker(hosts, rank, 3)));
  }
  for (auto& worker : workers) REQUIRE(worker->wait_for_output("summing", 60s));
  hosts.cut_link(1, 2);

  for (auto& worker : workers) {
    const auto ended = worker->wait(60s);
    INFO(ended.output);
    CHECK(ended.status == 1);
    CHECK(contains(ended.output, "the link between rank 1 (pid "));
    CHECK(names_rank(ended.output, 1));
    CHECK(names_rank(ended.output, 2));
    CHECK(contains(ended.output, "while rank 0 can reach both"));
    // 5 s of silence, the next look of the kernel, and half a second for the others' answers.
    CHECK(number_after(ended.output, "waited ms: ") < patience(10s).count());
  }
}

TEST_CASE("workers tell a host that was unplugged from a link") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(3);
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < 3; ++rank) {
    workers.push_back(std::make_unique<Process>(summing_worker(hosts, rank, 3)));
  }
  for (auto& worker : workers) REQUIRE(worker->wait_for_output("summing", 60s));
  hosts.set_plugged(2, false);

  for (int rank = 0; rank < 3; ++rank) {
    const auto ended = workers[static_cast<std::size_t>(rank)]->wait(60s);
    INFO("rank " << rank << ": " << ended.output);
    CHECK(names_rank(ended.output, 2));
    CHECK(contains(ended.output,
                   rank == 2 ? "is cut off" : "is gone: nothing has come from its host"));
    CHECK_FALSE(contains(ended.output, "the link"));
  }
}

TEST_CASE("workers between which large packets are lost say so") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  Process first(summing_worker(hosts, 0, 2, 10'000));
  Process second(summing_worker(hosts, 1, 2, 10'000));
  REQUIRE(first.wait_for_output("summing\n", 60s));
  hosts.narrow_cable(1, 600);

  const std::string word = " has waited for 5 s in all_reduce";
  CHECK(first.wait_for_output(word, 60s));
  CHECK(second.wait_for_output(word, 60s));
  first.send_signal(SIGKILL);
  second.send_signal(SIGKILL);
  // What one of them sent may have arrived before: then the other one alone knows.
  const auto told = first.wait(60s).output + second.wait(60s).output;
  INFO(told);
  CHECK(contains(told,
                 " does not arrive, though that one's host answers otherwise: large packets "
                 "are lost on the way (MTU"));
  CHECK(names_rank(told, 0));
  CHECK(names_rank(told, 1));
}

TEST_CASE("a node that was cut off from an elastic job joins it again when the cut is healed") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  const auto elastic = [&](int host) {
    return hosts.on(
        host,
        launch({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                NetworkHosts::address(0) + ":" + port, "--max-restarts", "9", "--forward-signals",
                "USR1", "--rdzv-conf", "heartbeat_timeout=1,keep_alive_interval=0.2"}) +
            shell(until_usr1("attempt $TORCHELASTIC_RESTART_COUNT: up of $WORLD_SIZE")));
  };
  Process first(elastic(0));
  Process second(elastic(1));
  REQUIRE(first.wait_for_output("attempt 0: up of 2", 60s));
  REQUIRE(second.wait_for_output("attempt 0: up of 2", 60s));

  hosts.set_plugged(1, false);
  REQUIRE(first.wait_for_output("attempt 1: up of 1", 60s));
  REQUIRE(second.wait_for_output("joining the job again", 60s));
  hosts.set_plugged(1, true);
  REQUIRE(first.wait_for_output("attempt 2: up of 2", 60s));
  REQUIRE(second.wait_for_output("attempt 2: up of 2", 60s));

  finish({&first, &second});
}

TEST_CASE("a host that went down without a word and is back takes its old place") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(2);
  // The old agent stands still as a machine without power does: nothing is closed. The time-out
  // is longer than the test, so that it is not what frees the rank.
  const std::vector<std::string> options = {
      "--max-restarts", "1",           "--forward-signals",
      "USR1",           "--rdzv-conf", "heartbeat_timeout=300,keep_alive_interval=0.2"};
  const std::string program = until_usr1("attempt $TORCHELASTIC_RESTART_COUNT: up $RANK");
  Process first(hosts.on(0, node(0, options, program)));
  Process old(hosts.on(1, node(1, options, program)));
  REQUIRE(old.wait_for_output("attempt 0: up 1", 60s));
  old.send_signal(SIGSTOP);

  Process again(hosts.on(1, node(1, options, program)));
  REQUIRE(first.wait_for_output("attempt 1: up 0", 60s));
  REQUIRE(again.wait_for_output("attempt 1: up 1", 60s));

  finish({&first, &again});
  old.send_signal(SIGKILL);
}
