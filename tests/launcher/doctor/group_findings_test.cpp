// What is found between machines, in which pairs are tried, and which hosts are left to form a job.
#include "launcher/doctor/group_findings.h"

#include <algorithm>
#include <functional>
#include <set>

#include "launcher/doctor/pair_plan.h"
#include "tests/launcher/doctor/healthy_machine.h"
#include "tests/testing/catch.h"
#include "tests/testing/text.h"

using namespace ddprun::launcher;
using namespace ddprun::testing;
using Level = Finding::Level;
using Members = std::vector<ProbedHost>;

namespace {

Members healthy_group() {
  Members members;
  for (int i = 0; i < 3; ++i) {
    const std::string name = std::string("host-") + static_cast<char>('a' + i);
    members.push_back(
        {i, name, "10.0.0." + std::to_string(i + 1), 0.001 * i, 0.001, healthy_machine(name, i)});
    for (int other = 0; other < 3; ++other) {
      if (other == i) continue;
      members.back().facts.names.push_back({std::string("host-") + static_cast<char>('a' + other),
                                            {"10.0.0." + std::to_string(other + 1)},
                                            ""});
    }
  }
  return members;
}

struct SpoiltGroup {
  const char* what;
  Level level;
  const char* value;
  const char* remedy;
  std::vector<int> hosts;
  std::function<void(Members&)> spoil;
};

const std::vector<SpoiltGroup>& spoilt_groups() {
  static const std::vector<SpoiltGroup> rows = {
      {"version",
       Level::Amber,
       "ddprun 0.9 on host-c",
       "--copy-self",
       {},
       [](Members& members) { members[2].facts.version = "ddprun 0.9"; }},
      {"secret",
       Level::Amber,
       "one on host-a, host-c; another one on host-b",
       "scp host-a:",
       {},
       [](Members& members) { members[1].facts.secret_proof = "11aa"; }},
      {"secret",
       Level::Amber,
       "none on host-b",
       "scp host-a:",
       {},
       [](Members& members) { members[1].facts.secret_proof = ""; }},
      {"clocks",
       Level::Amber,
       "host-b is 2.5 s ahead of host-a",
       "chronyd",
       {},
       [](Members& members) { members[1].clock_ahead_s = 2.5; }},
      {"clocks",
       Level::Red,
       "host-b is 400 s ahead of host-a",
       "chronyd",
       {1, 0},
       [](Members& members) { members[1].clock_ahead_s = 400; }},
      {"GPUs",
       Level::Amber,
       "1 GPU on host-b; 2 GPUs on host-a, host-c",
       "-H a:8,b:4",
       {},
       [](Members& members) { members[1].facts.gpu.count = 1; }},
      {"driver",
       Level::Amber,
       "535.1.2 on host-b",
       "the same driver",
       {},
       [](Members& members) { members[1].facts.gpu.driver = "535.1.2"; }},
      {"NCCL",
       Level::Amber,
       "2.18.1 on host-b",
       "the same libnccl2",
       {},
       [](Members& members) { members[1].facts.gpu.nccl = "2.18.1"; }},
      {"MTU",
       Level::Amber,
       "1500 on host-a, host-c; 9000 on host-b",
       "ip link set dev",
       {},
       [](Members& members) { members[1].facts.interfaces[1].mtu = 9'000; }},
      {"one machine",
       Level::Amber,
       "host-a and host-b are the same",
       "-H host-a:N",
       {},
       [](Members& members) {
         members[1].facts.boot_id = members[0].facts.boot_id;
         members[1].address = members[0].address;
         members[1].facts.interfaces = members[0].facts.interfaces;
       }},
      {"addresses",
       Level::Red,
       "both are reached at 10.0.0.1",
       "~/.ssh/config",
       {0, 1},
       [](Members& members) { members[1].address = "10.0.0.1"; }},
      {"names",
       Level::Amber,
       "host-c does not resolve",
       "/etc/hosts or DNS",
       {},
       [](Members& members) {
         members[1].facts.names[2] = {"host-c", {}, "unknown"};
       }},
      {"names",
       Level::Red,
       "host-c leads to the loopback interface",
       "out of /etc/hosts",
       {1},
       [](Members& members) {
         members[1].facts.names[2] = {"host-c", {"127.0.1.1"}, ""};
       }},
  };
  return rows;
}

Findings bad_ones(const Findings& findings) {
  Findings bad;
  std::copy_if(findings.begin(), findings.end(), std::back_inserter(bad),
               [](const Finding& finding) { return finding.level != Level::Green; });
  return bad;
}

PairFacts good_pair(int from, int to) {
  return {.from = from,
          .to = to,
          .address = "10.0.0.9",
          .rendezvous = Reached::Yes,
          .ephemeral = Reached::Yes,
          .words = "",
          .large_stalled = false,
          .latency_s = 1e-4,
          .bytes_per_s = 1e9};
}

}  // namespace

TEST_CASE("17.3: each difference between machines is found, alone", "[doctor]") {
  CHECK(bad_ones(compare_machines(healthy_group())).empty());
  for (const SpoiltGroup& row : spoilt_groups()) {
    Members members = healthy_group();
    row.spoil(members);
    const Findings bad = bad_ones(compare_machines(members));
    INFO(row.what << ": " << row.value);
    REQUIRE(bad.size() == 1);
    INFO(bad[0].what << ": " << bad[0].value);
    CHECK(bad[0].what == row.what);
    CHECK(bad[0].level == row.level);
    CHECK(contains(bad[0].value, row.value));
    CHECK(contains(bad[0].remedy, row.remedy));
    CHECK(bad[0].hosts == row.hosts);
  }
}

TEST_CASE("17.3: names that mean each machine itself say nothing of another one", "[doctor]") {
  for (const std::string name : {"localhost", "127.0.0.1", "::1"}) {
    INFO(name);
    Members members = healthy_group();
    members[0].name = name;
    members[1].facts.names[1] = {name, {"127.0.0.1"}, ""};
    members[2].facts.names[1] = {name, {}, "unknown"};
    CHECK(bad_ones(compare_machines(members)).empty());
  }
}

TEST_CASE("17.3: a slow answer is no wrong clock", "[doctor]") {
  Members members = healthy_group();
  members[1].clock_ahead_s = 0.9;
  members[1].clock_error_s = 0.8;
  CHECK(bad_ones(compare_machines(members)).empty());
}

TEST_CASE("17.3: each way in which a connection fails has its own words", "[doctor]") {
  struct Row {
    const char* value;
    const char* reason;
    const char* remedy;
    std::function<void(PairFacts&)> spoil;
  };
  const std::vector<Row> rows = {
      {"port 29500: no answer", "drops the packets", "--add-port=29500/tcp",
       [](PairFacts& pair) { pair.rendezvous = Reached::NoAnswer; }},
      {"port 29500: refused", "a firewall refuses", "--master-port",
       [](PairFacts& pair) { pair.rendezvous = Reached::Refused; }},
      {"the ports that workers choose: no answer", "drops", "32768-60999",
       [](PairFacts& pair) { pair.ephemeral = Reached::NoAnswer; }},
      {"port 29500 and the ports that workers choose: No route to host", "no way", "ip route get",
       [](PairFacts& pair) {
         pair.rendezvous = pair.ephemeral = Reached::NoRoute;
         pair.words = "No route to host";
       }},
      {"the address does not resolve (unknown)", "configuration", "/etc/hosts or DNS",
       [](PairFacts& pair) {
         pair.rendezvous = pair.ephemeral = Reached::NoName;
         pair.words = "unknown";
       }},
      {"port 29500: another program answers", "another machine", "ss -ltnp",
       [](PairFacts& pair) { pair.rendezvous = Reached::Stranger; }},
      {"port 29500: Too many open files", "system", "words",
       [](PairFacts& pair) {
         pair.rendezvous = Reached::Failed;
         pair.words = "Too many open files";
       }},
      {"small messages arrive, large ones do not", "MTU", "ping -M do",
       [](PairFacts& pair) { pair.large_stalled = true; }},
  };
  for (const Row& row : rows) {
    std::vector<PairFacts> pairs{good_pair(0, 1), good_pair(1, 0)};
    row.spoil(pairs[0]);
    const Findings findings = examine_pairs(pairs, {"host-a", "host-b"}, 29'500);
    INFO(row.value);
    REQUIRE(findings.size() == 1);
    INFO(findings[0].value);
    CHECK(findings[0].level == Level::Red);
    CHECK(findings[0].where == "host-a -> host-b");
    CHECK(contains(findings[0].value, row.value));
    CHECK(contains(findings[0].reason, row.reason));
    CHECK(contains(findings[0].remedy, row.remedy));
    CHECK(findings[0].hosts == std::vector<int>{1, 0});
  }
}

TEST_CASE("17.3: a firewall on one host is one finding, and pairs that pass are one line",
          "[doctor]") {
  std::vector<PairFacts> pairs;
  for (const auto& [from, to] : {std::pair(0, 1), {1, 0}, {0, 2}, {2, 0}, {1, 2}, {2, 1}}) {
    pairs.push_back(good_pair(from, to));
  }
  const std::vector<std::string> names{"a", "b", "c"};
  const Findings good = examine_pairs(pairs, names, 1);
  REQUIRE(good.size() == 1);
  CHECK(good[0].level == Level::Green);
  CHECK(contains(good[0].value, "6 directions passed"));
  for (PairFacts& pair : pairs) {
    if (pair.to == 2) pair.rendezvous = Reached::NoAnswer;
  }
  const Findings bad = examine_pairs(pairs, names, 1);
  REQUIRE(bad.size() == 1);
  CHECK(bad[0].where == "a, b -> c");
  CHECK(fit_hosts(3, bad) == std::vector<int>{0, 1});
}

TEST_CASE("17.3: a connection that is slow, or slower than the others, is amber", "[doctor]") {
  const std::vector<std::string> names{"a", "b"};
  std::vector<PairFacts> pairs{good_pair(0, 1), good_pair(1, 0), good_pair(0, 1)};
  pairs[1].bytes_per_s = 1e8;
  Findings bad = bad_ones(examine_pairs(pairs, names, 1));
  REQUIRE(bad.size() == 1);
  CHECK(bad[0].level == Level::Amber);
  CHECK(bad[0].where == "b -> a");
  CHECK(contains(bad[0].value, "100 MB/s, where half of the pairs have 1 GB/s"));
  for (PairFacts& pair : pairs) pair.bytes_per_s = 1e7;
  bad = bad_ones(examine_pairs(pairs, names, 1));
  REQUIRE(bad.size() == 3);
  CHECK(bad[0].value == "10 MB/s");
}

TEST_CASE("17.3: no host has a part in two pairs at once, and up to 16 hosts all pairs are tried",
          "[doctor]") {
  for (const int hosts : {1, 2, 3, 4, 7, 16, 17, 18, 101}) {
    const PairPlan plan = plan_pairs(hosts);
    std::set<PairPlan::Pair> seen;
    std::vector<std::set<int>> neighbours(static_cast<std::size_t>(hosts));
    for (const auto& round : plan.rounds) {
      std::set<int> busy;
      for (const auto& [from, to] : round) {
        CHECK(from != to);
        CHECK(busy.insert(from).second);
        CHECK(busy.insert(to).second);
        CHECK((from >= 0 && from < hosts && to >= 0 && to < hosts));
        CHECK(seen.emplace(from, to).second);  // None is measured twice.
      }
    }
    INFO(hosts);
    CHECK(plan.is_sample == (hosts > all_pairs_hosts_max));
    if (!plan.is_sample) {
      CHECK(seen.size() == static_cast<std::size_t>(hosts * (hosts - 1)));
      continue;
    }
    CHECK(plan.rounds.size() <= 10);
    for (int host = 0; host < hosts; ++host) {
      CHECK(seen.count({host, (host + 1) % hosts}) == 1);
      CHECK(seen.count({(host + 1) % hosts, host}) == 1);
    }
    CHECK(seen.size() > 3 * static_cast<std::size_t>(hosts));
  }
}

TEST_CASE("17.3: the hosts that are left can all reach each other", "[doctor]") {
  const auto red = [](std::vector<int> hosts) {
    return Finding{Level::Red, "", "", "", "", "", std::move(hosts)};
  };
  CHECK(fit_hosts(3, {}) == std::vector<int>{0, 1, 2});
  CHECK(fit_hosts(3, {red({1})}) == std::vector<int>{0, 2});
  CHECK(fit_hosts(2, {red({1, 0}), red({0, 1})}) == std::vector<int>{0});
  // Host 1 has a part in all of it.
  CHECK(fit_hosts(4, {red({1, 0}), red({1, 2}), red({3, 1})}) == std::vector<int>{0, 2, 3});
  CHECK(fit_hosts(1, {red({0})}).empty());
  Finding amber = red({0});
  amber.level = Level::Amber;
  CHECK(fit_hosts(1, {amber}) == std::vector<int>{0});
}
