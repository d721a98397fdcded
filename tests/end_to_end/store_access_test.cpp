// Who may use the store of a running job, and who gets a place in one that forms, tried from hosts
// of their own with the real programs: a member's, one that a member names, one that has left.
#include <csignal>
#include <utility>

#include "tests/end_to_end/ddprun_process.h"
#include "tests/end_to_end/endless_job.h"
#include "tests/testing/catch.h"
#include "tests/testing/network_hosts.h"

using namespace ddprun::testing;

namespace {

const std::string access_program =
    until_usr1("attempt $TORCHELASTIC_RESTART_COUNT: $RANK of $WORLD_SIZE");

// Says "served" if the store at host 0 answers a PING, then "closed" when the connection ends.
std::vector<std::string> store_connection() {
  const std::string hello = R"(\000\316\367\205\074\015abcd)";  // VALIDATE, PING
  return {"bash", "-c",
          "exec 3<>/dev/tcp/" + NetworkHosts::address(0) + "/29500 && printf '" + hello +
              "' >&3 && test \"$(head -c 4 <&3)\" = abcd && echo served; head -c 1 <&3; "
              "echo closed"};
}

bool is_served(const NetworkHosts& hosts, int host) {
  Process client(hosts.on(host, store_connection()));
  REQUIRE((client.wait_for_output("served", 60s) || client.wait_for_output("closed", 1s)));
  return contains(client.output(), "served");
}

struct ElasticPair {
  explicit ElasticPair(std::vector<std::string> more = {})
      : variables{{"XDG_CONFIG_HOME", home.path()}}, options(std::move(more)) {}

  std::vector<std::string> node(int host) const {
    return hosts.on(host, launch({"--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                                  NetworkHosts::address(0) + ":29500", "--forward-signals", "USR1",
                                  "--rdzv-conf", "last_call_timeout=0,start_timeout=300"}) +
                              options + shell(access_program));
  }

  const NetworkHosts hosts{3};
  const TemporaryFolder home;
  const std::map<std::string, std::string> variables;
  const std::vector<std::string> options;
};

std::vector<std::string> attacker(const std::vector<std::string>& words) {
  return std::vector<std::string>{"python3", "-B",
                                  DDPRUN_SOURCE_DIR "/tests/end_to_end/attacker.py"} +
         words;
}

// The same by a user of host 0 itself, from one of its addresses. All is imported before: Python
// may lie where that user must not look.
std::vector<std::string> local_connection(const std::string& from, int user) {
  return {"python3", "-c",
          "import encodings.idna, os, socket; os.setuid(" + std::to_string(user) +
              "); s = socket.create_connection((\"" + NetworkHosts::address(0) +
              "\", 29500), 60, (\"" + from +
              "\", 0)); s.sendall(b\"\\0\\xce\\xf7\\x85\\x3c\\x0dabcd\")\n"
              "try: print(\"served\" if s.recv(4) == b\"abcd\" else \"closed\")\n"
              "except ConnectionError: print(\"closed\")"};
}

}  // namespace

TEST_CASE("15.3: another user of node 0's machine is turned away by whichever address it comes") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const ElasticPair job;
  const std::string second = "10.78.0.9";
  REQUIRE(run(job.hosts.on(0, {"ip", "address", "add", second + "/32", "dev", "lo"}), 60s).status ==
          0);
  Process first(job.node(0), job.variables);
  REQUIRE(first.wait_for_output("attempt 0: 0 of 1", 60s));

  for (const std::string& from : {NetworkHosts::address(0), second}) {
    const auto own = run(job.hosts.on(0, local_connection(from, 0)), 60s);
    const auto other = run(job.hosts.on(0, local_connection(from, 65'534)), 60s);
    INFO(from << " own: " << own.output << " other: " << other.output);
    CHECK(own.output == "served\n");
    CHECK(other.output == "closed\n");
  }
  finish({&first});
}

TEST_CASE("15.3: a host that a member announces may use the store only if that has the secret") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  if (run(shell("command -v openssl"), 20s).status != 0) DDPRUN_SKIP("there is no openssl");
  const bool proved = GENERATE(false, true);
  const ElasticPair job(proved ? std::vector<std::string>{}
                               : std::vector<std::string>{"--auth", "none"});
  Process first(job.node(0), job.variables);
  REQUIRE(first.wait_for_output("attempt 0: 0 of 1", 60s));
  std::vector<std::string> words = {"mute",       NetworkHosts::address(0),
                                    "29500",      "600",
                                    "nnodes=1:2", "address=" + NetworkHosts::address(1)};
  if (proved) words.push_back("secret=" + (job.home / "ddprun/secret"));
  Process member(job.hosts.on(2, attacker(words)));
  REQUIRE(member.wait_for_output("began", 60s));

  CHECK(is_served(job.hosts, 2));
  CHECK(is_served(job.hosts, 1) == proved);

  member.send_signal(SIGKILL);
  REQUIRE(first.wait_for_output("attempt 2: 0 of 1", 60s));
  CHECK_FALSE(is_served(job.hosts, 2));
  finish({&first});
}

TEST_CASE("15.3: a host whose agent leaves or is lost has no store any more") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const int signal = GENERATE(SIGINT, SIGKILL);
  const ElasticPair job;
  Process first(job.node(0), job.variables);
  REQUIRE(first.wait_for_output("attempt 0: 0 of 1", 60s));
  Process second(job.node(1), job.variables);
  REQUIRE(first.wait_for_output("0 of 2", 60s));
  REQUIRE(second.wait_for_output("1 of 2", 60s));
  Process open(job.hosts.on(1, store_connection()));
  REQUIRE(open.wait_for_output("served", 60s));

  second.send_signal(signal);
  CHECK(open.wait_for_output("closed", 60s));
  REQUIRE(first.wait_for_output("attempt 2: 0 of 1", 60s));
  CHECK_FALSE(is_served(job.hosts, 1));
  CHECK(is_served(job.hosts, 0));

  finish({&first});
}

TEST_CASE("15.5: a rank is not given twice while a job forms, and only its host hears who has it") {
  if (const auto why = NetworkHosts::unavailable(); !why.empty()) DDPRUN_SKIP(why);
  const NetworkHosts hosts(4);
  const TemporaryFolder home;
  const std::map<std::string, std::string> variables = {{"XDG_CONFIG_HOME", home.path()}};
  const auto node = [&](int host, int rank) {
    return hosts.on(host, launch({"--nnodes", "3", "--node-rank", std::to_string(rank),
                                  "--master-addr", NetworkHosts::address(0)}) +
                              shell("echo \"rank $RANK of $WORLD_SIZE\""));
  };
  Process first(node(0, 0), variables);
  Process second(node(1, 1), variables);
  REQUIRE(first.wait_for_output("waiting for node 2", 60s));
  // Without the secret nobody gets the rank that is free.
  const auto joiner = run(hosts.on(2, attacker({"join", NetworkHosts::address(0), "29500", "1",
                                                "nnodes=3:3", "elastic=0", "rank=2"})),
                          60s);
  INFO(joiner.output);
  CHECK(contains(joiner.output, "joined=0"));

  // All are one host by their names here: the first agent has to show that it is alive.
  const auto twice = run(node(3, 1), 60s, variables);
  INFO(twice.output);
  CHECK(twice.status == 73);
  CHECK(contains(twice.output, "--node-rank 1 is already taken"));
  CHECK_FALSE(contains(twice.output, NetworkHosts::address(1)));
  REQUIRE(first.wait_for_output(
      "is here a second time; the first one, at " + NetworkHosts::address(1), 60s));
  CHECK(contains(first.output(), "from " + NetworkHosts::address(3)));
  CHECK_FALSE(contains(second.output(), NetworkHosts::address(3)));

  CHECK(contains(run(node(2, 2), 60s, variables).output, "rank 2 of 3"));
  CHECK(first.wait(60s).status == 0);
  CHECK(second.wait(60s).status == 0);
}
